"""Keys that sign wheels: pairs on an elliptic curve, as PEM, named by their fingerprint."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import MissingError, UsageError
from .integrity import sha256_hex

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["PublicKey", "new_key", "read_keys", "require_extra"]

_CURVES = ("secp256r1", "secp384r1", "secp521r1")
_HINT = "Make a pair with 'redhost new-key FILE'."


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """What verifies an author's signatures.

    Attributes:
        name: The file it was read from.
        pem: The key, in the one way that it can be written.
        fingerprint: The sha256 of `pem`; signatures and locks name the key by it.
    """

    name: str
    pem: bytes
    fingerprint: str


def require_extra() -> None:
    """Refuse to go on where signatures can be neither made nor checked.

    Raises:
        MissingError: If a package of the extra ``sign`` is not installed.
    """
    try:
        for name in ("cryptography", "model_signing.signing", "model_signing.verifying"):
            importlib.import_module(name)
    except ImportError as e:
        raise MissingError(
            "signatures cannot be made or checked here",
            expected="the extra 'sign'",
            found=str(e),
            hint="Install it: pip install 'redhost[sign]'.",
        ) from e


def new_key(path: Path) -> Path:
    """Make a key pair, the private key readable by its owner alone.

    Args:
        path: Where the private key goes; it is not overwritten. The public key goes beside it:
            ``author.pem`` and ``author.pub.pem``.

    Returns:
        The path of the public key.

    Raises:
        UsageError: If one of the files is there already, or cannot be written.
    """
    require_extra()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    encoding, plain = form.Encoding.PEM, form.NoEncryption()
    public = path.with_name(f"{path.name.removesuffix('.pem')}.pub.pem")
    # The public one first: what can be lost when the second fails is then no secret.
    _write_new(public, _pem(key.public_key()), mode=0o644)
    try:
        _write_new(path, key.private_bytes(encoding, form.PrivateFormat.PKCS8, plain), mode=0o600)
    except UsageError:
        public.unlink()
        raise
    return public


def read_keys(paths: Iterable[str | Path]) -> tuple[PublicKey, ...]:
    """Read public keys; without any, nothing is imported.

    Args:
        paths: PEM files.

    Raises:
        UsageError: If one is no public key on a known curve.
        MissingError: If the extra ``sign`` is not installed.
    """
    wanted = tuple(map(Path, paths))
    if wanted:
        require_extra()
    return tuple(map(_read, wanted))


def _read(path: Path) -> PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    who, expected = f"cannot verify with {path}", "an elliptic-curve public key, as PEM"
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as e:
        found = e.strerror if isinstance(e, OSError) and e.strerror else "something else"
        raise UsageError(who, expected=expected, found=found.lower(), hint=_HINT) from e
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise UsageError(who, expected=expected, found="another kind of key", hint=_HINT)
    pem = _pem(key)
    return PublicKey(name=str(path), pem=pem, fingerprint=sha256_hex(pem))


def _pem(key: EllipticCurvePublicKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


def _write_new(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file that must not be there; its mode is right from the first byte on."""
    made = False
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        made = True
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except OSError as e:
        if made:
            path.unlink()
        found = (e.strerror or type(e).__name__).lower()
        hint = "Keys are never overwritten: name another file."
        raise UsageError(f"cannot write the key {path}", found=found, hint=hint) from e
