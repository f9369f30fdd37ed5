"""Detached signatures of wheels: ``NAME.whl.sig`` beside ``NAME.whl``, over its sha256.

The format is that of the package model-signing with a key (a Sigstore bundle); nothing goes online.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .errors import UsageError, short
from .keys import PublicKey, require_extra
from .sources import read_file
from .violations import Violation

__all__ = ["make_signer", "read_signature", "signature_path", "verify"]

_MAX_SIGNATURE = 2**16
_ASK = "Ask its author for the file that 'redhost pack --sign' wrote beside the wheel"


def signature_path(wheel: Path) -> Path:
    """Return where the signature of a wheel lies."""
    return wheel.with_name(f"{wheel.name}.sig")


def make_signer(key: Path) -> Callable[[Path], Path]:
    """Read a private key.

    Args:
        key: A PEM file without a password.

    Returns:
        The function that signs a wheel and returns the path of the signature.

    Raises:
        UsageError: If it is no private key on a known curve.
        MissingError: If the extra ``sign`` is not installed.
    """
    require_extra()
    from model_signing import signing

    try:
        config = signing.Config().use_elliptic_key_signer(private_key=key)
    except Exception as e:  # its parsers raise whatever they stumble over
        raise UsageError(
            f"cannot sign with {key}",
            expected="an elliptic-curve private key, as PEM, without a password",
            found=str(e)[:120] or type(e).__name__,
            hint="Make one with 'redhost new-key FILE'.",
        ) from e

    def sign(wheel: Path) -> Path:
        signature = signature_path(wheel)
        config.sign(wheel, signature)
        return signature

    return sign


def read_signature(path: Path) -> bytes | Violation:
    """Read a signature's file."""
    data = read_file(path, missing="signature_missing", limit=_MAX_SIGNATURE)
    if isinstance(data, bytes):
        return data
    code = "signature_missing" if data.code == "signature_missing" else "signature_wrong"
    hint = f"{_ASK}; for a NAME, it lies in the folder of --find-links."
    return replace(data, code=code, expected="a signature beside the wheel", hint=hint)


def verify(
    data: bytes, signature: bytes, *, keys: Sequence[PublicKey], name: str
) -> PublicKey | Violation:
    """Find the key that signed these bytes.

    Args:
        data: A wheel's bytes.
        signature: What lies beside it.
        keys: The keys that are trusted.
        name: The signature's file name, for the report.
    """
    known = ", ".join(short(key.fingerprint) for key in keys)
    hint = f"Do not install it. {_ASK}, and for the public key."
    signer = _signer(signature)
    key = next((key for key in keys if key.fingerprint == signer), None)
    if key is None:
        expected = f"a signature by {known}"
        found = f"one by {short(signer)}" if signer else "no signature by a key"
        return Violation("signature_wrong", name, expected, found, hint)
    if not _holds(data, signature, key):
        found = "a signature of something else"
        return Violation("signature_wrong", name, "a signature of this wheel", found, hint)
    return key


def _signer(signature: bytes) -> str:
    """Return the fingerprint of the key that a signature says made it; it is not yet proven."""
    try:
        signer = json.loads(signature)["verificationMaterial"]["publicKey"]["hint"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
    return signer if isinstance(signer, str) else ""


def _holds(data: bytes, signature: bytes, key: PublicKey) -> bool:
    """Verify bytes in memory: the library reads files, so it gets some of its own."""
    from model_signing import hashing, verifying

    files = {"wheel": data, "signature": signature, "key": key.pem}
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        paths = {name: Path(folder) / name for name in files}
        for name, content in files.items():
            paths[name].write_bytes(content)
        config = verifying.Config().use_elliptic_key_verifier(public_key=paths["key"])
        # Whole files by sha256, whatever the signature would rather have compared.
        config.set_hashing_config(hashing.Config().use_file_serialization())
        try:
            config.verify(paths["wheel"], paths["signature"])
        except Exception:  # its parsers raise whatever they stumble over; only silence is consent
            return False
    return True
