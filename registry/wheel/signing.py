"""Signatures of wheels: elliptic-curve public keys, and verification in memory.

Key pairs and signatures are made by redhost-author: `redhost_author.signing`.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ..errors import MissingError, UsageError, short
from ..package.checked import Checked, Refused, Violation, checked
from ..package.readers import read_file
from ..package.safetensors_check import sha256_hex

# -- keys -----------------------------------------------------------------------------------------

_CURVES = ("secp256r1", "secp384r1", "secp521r1")
_HINT = "Name the public one, NAME.pub.pem; 'redhost new-key NAME.pem' makes a pair."


class PublicKey(Struct, frozen=True, kw_only=True):
    """A key that verifies an author's signatures.

    Attributes:
        name: The file it was read from.
        pem: The key, in canonical form.
        fingerprint: The sha256 of `pem`; signatures and locks name the key by it.
    """

    name: str
    pem: bytes
    fingerprint: str


def require_extra() -> None:
    """Require the packages for making and checking signatures.

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


def read_keys(paths: Iterable[str | Path]) -> tuple[PublicKey, ...]:
    """Read public keys; without any, nothing is imported.

    Args:
        paths: PEM files.

    Raises:
        UsageError: If a file is not a public key on a supported curve.
        MissingError: If the extra ``sign`` is not installed.
    """
    files = tuple(map(Path, paths))
    if files:
        require_extra()
    return tuple(map(_read_key, files))


def _read_key(path: Path) -> PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    problem, expected = f"cannot verify with {path}", "an elliptic-curve public key, as PEM"
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as e:
        content = e.strerror if isinstance(e, OSError) and e.strerror else "something else"
        raise UsageError(problem, expected=expected, found=content.lower(), hint=_HINT) from e
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise UsageError(problem, expected=expected, found="another kind of key", hint=_HINT)
    pem = key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(name=str(path), pem=pem, fingerprint=sha256_hex(pem))


# -- verifying -------------------------------------------------------------------------------------

_MAX_SIGNATURE = 2**16
_ASK = "Ask its author for the file that 'redhost pack --sign' wrote beside the wheel"


def signature_path(wheel: Path) -> Path:
    """Return the path of a wheel's signature."""
    return wheel.with_name(f"{wheel.name}.sig")


def read_signature(path: Path) -> Checked[bytes]:
    """Read a signature file."""
    read = read_file(
        path, missing="signature_missing", limit=_MAX_SIGNATURE, too_large="signature_wrong"
    )
    expected = "a signature beside the wheel"
    hint = f"{_ASK}; for a NAME, it lies in the folder of --find-links."
    violations = (replace(v, expected=expected, hint=hint) for v in read.violations)
    return replace(read, violations=tuple(violations))


@checked
def verify(data: bytes, signature: bytes, *, keys: Sequence[PublicKey], name: str) -> PublicKey:
    """Find the key that signed these bytes.

    Args:
        data: A wheel's bytes.
        signature: The bytes of its signature file.
        keys: The keys that are trusted.
        name: The signature's file name, for the report.
    """
    fingerprints = ", ".join(short(key.fingerprint) for key in keys)
    hint = f"Do not install it. {_ASK}, and for the public key."
    try:  # the signer that it claims, not yet verified
        signer = json.loads(signature)["verificationMaterial"]["publicKey"]["hint"]
    except (ValueError, TypeError, LookupError, RecursionError):
        signer = None
    key = next((key for key in keys if key.fingerprint == signer), None)
    if key is None:
        expected = f"a signature by {fingerprints}"
        claimed = signer if isinstance(signer, str) else ""
        signature_by = f"one by {short(claimed)}" if claimed else "no signature by a key"
        raise Refused(Violation("signature_wrong", name, expected, signature_by, hint))
    if not _holds(data, signature, key):
        expected, signed = "a signature of this wheel", "a signature of something else"
        raise Refused(Violation("signature_wrong", name, expected, signed, hint))
    return key


def _holds(data: bytes, signature: bytes, key: PublicKey) -> bool:
    """Verify bytes in memory: the library reads files, so it gets temporary ones."""
    from model_signing import hashing, verifying

    files = {"wheel": data, "signature": signature, "key": key.pem}
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        paths = {name: Path(folder) / name for name in files}
        for name, content in files.items():
            paths[name].write_bytes(content)
        config = verifying.Config().use_elliptic_key_verifier(public_key=paths["key"])
        # Whole files by sha256, whatever the signature specifies.
        config.set_hashing_config(hashing.Config().use_file_serialization())
        try:
            config.verify(paths["wheel"], paths["signature"])
        except Exception:  # the library's parsers raise many kinds of errors; any error means no
            return False
    return True
