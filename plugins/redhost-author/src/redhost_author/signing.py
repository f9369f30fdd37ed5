"""Signatures of wheels, made: elliptic-curve key pairs, and files beside wheels.

They are verified by the host: `redhost.registry.wheel.signing`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from redhost.registry.errors import UsageError
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.signing import PublicKey, require_extra, signature_path

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes


class KeyPair(Struct, frozen=True, kw_only=True):
    """A new key pair.

    Attributes:
        private: Path of the private key.
        public: Path of the public key.
        fingerprint: The sha256 of the public key.
    """

    private: str
    public: str
    fingerprint: str


def new_key(path: Path) -> Path:
    """Make a key pair; only its owner can read the private key.

    Args:
        path: The path of the private key; it is not overwritten. The public key is stored next to
            it: ``author.pem`` and ``author.pub.pem``.

    Returns:
        The path of the public key.

    Raises:
        UsageError: If one of the files exists already, or cannot be written.
    """
    require_extra()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    encoding, plain = form.Encoding.PEM, form.NoEncryption()
    public = path.with_name(f"{path.name.removesuffix('.pem')}.pub.pem")
    # The public key first: if the second write fails, no secret has been written.
    _write_new(public, _pem(key.public_key()), mode=0o644)
    try:
        _write_new(path, key.private_bytes(encoding, form.PrivateFormat.PKCS8, plain), mode=0o600)
    except UsageError:
        public.unlink()
        raise
    return public


def make_signer(key: Path) -> Callable[[Path], Path]:
    """Read a private key.

    Args:
        key: A PEM file without a password.

    Returns:
        The function that signs a wheel and returns the path of the signature.

    Raises:
        UsageError: If it is not a private key on a supported curve.
        MissingError: If the extra ``sign`` is not installed.
    """
    require_extra()
    from model_signing import signing

    try:
        config = signing.Config().use_elliptic_key_signer(private_key=key)
    except Exception as e:  # the library's parsers raise many kinds of errors
        raise _unusable(key, e) from e

    def sign(wheel: Path) -> Path:
        signature = signature_path(wheel)
        config.sign(wheel, signature)
        return signature

    return sign


def public_key_of(key: Path) -> PublicKey:
    """Return the public key of a private one.

    Raises:
        UsageError: If it is not a private key, as PEM, without a password.
        MissingError: If the extra ``sign`` is not installed.
    """
    require_extra()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        pem = _pem(load_pem_private_key(key.read_bytes(), None).public_key())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise _unusable(key, e) from e
    return PublicKey(name=str(key), pem=pem, fingerprint=sha256_hex(pem))


def _pem(key: PublicKeyTypes) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


def _unusable(key: Path, error: Exception) -> UsageError:
    """Return the error of a file that is no private key: libraries say it in many words."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else "something else"
    return UsageError(
        f"cannot sign with {key}",
        expected="an elliptic-curve private key, as PEM, without a password",
        found=reason.lower(),
        hint="Make one with 'redhost new-key FILE'.",
    )


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file that must not exist yet; it has its final mode from the first byte on."""
    created = False
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        created = True
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except OSError as e:
        if created:
            path.unlink()
        reason = (e.strerror or type(e).__name__).lower()
        hint = "Check free space and permissions."
        if isinstance(e, FileExistsError):
            hint = "Keys are never overwritten: name another file."
        raise UsageError(f"cannot write the key {path}", found=reason, hint=hint) from e
