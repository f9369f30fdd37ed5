"""Keys: made once, private from the first byte, and refused where they are not what is needed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from redhost_author.signing import make_signer, new_key

from redhost.registry.errors import UsageError
from redhost.registry.wheel.signing import read_keys


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_key_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        public = new_key(tmp_path / "author.pem")
        (tmp_path / "plain").write_bytes(b"")
    finally:
        os.umask(before)
    assert public == tmp_path / "author.pub.pem"
    assert (mode(tmp_path / "author.pem"), mode(public)) == (0o600, 0o644)
    assert mode(tmp_path / "plain") == 0o666  # what anybody could read otherwise
    [key] = read_keys([public])
    assert len(key.fingerprint) == 64 and key.pem == public.read_bytes()


@pytest.mark.parametrize("there", ["author.pem", "author.pub.pem"])
def test_keys_are_never_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_bytes(b"precious")
    with pytest.raises(UsageError, match="never overwritten"):
        new_key(tmp_path / "author.pem")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {there: b"precious"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
def test_a_full_disk_is_one_line_and_leaves_no_half_a_key(tmp_path: Path, monkeypatch: Any) -> None:
    def full(fd: int, mode: str) -> IO[bytes]:
        os.close(fd)
        return Path("/dev/full").open(mode)

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(UsageError, match=r"cannot write the key .*found no space left") as e:
        new_key(tmp_path / "author.pem")
    assert list(tmp_path.iterdir()) == [] and "overwritten" not in e.value.hint


def other_keys() -> dict[str, bytes]:
    """Return PEM files that are not public keys on a known curve."""
    pem, spki = form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
    private = ec.generate_private_key(ec.SECP256R1())
    return {
        "private": private.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption()),
        "ed25519": ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(pem, spki),
        "curve": ec.generate_private_key(ec.SECP256K1()).public_key().public_bytes(pem, spki),
        "junk": b"\xff\x00",
        "empty": b"",
    }


@pytest.mark.parametrize("kind", [*other_keys(), "absent"])
def test_what_is_no_public_key_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key.pem"
    if kind != "absent":
        path.write_bytes(other_keys()[kind])
    with pytest.raises(UsageError, match="elliptic-curve public key") as e:
        read_keys([path])
    assert "\n" not in str(e.value) and str(path) in str(e.value)


@pytest.mark.parametrize("kind", ["public", "ed25519", "password", "junk", "absent"])
def test_what_is_no_private_key_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path, pem = tmp_path / "key.pem", form.Encoding.PEM
    if kind == "public":
        path = new_key(path)
    elif kind != "absent":
        private = ec.generate_private_key(ec.SECP256R1())
        locked = form.BestAvailableEncryption(b"secret")
        contents = {
            "password": private.private_bytes(pem, form.PrivateFormat.PKCS8, locked),
            "ed25519": ed25519.Ed25519PrivateKey.generate().private_bytes(
                pem, form.PrivateFormat.PKCS8, form.NoEncryption()
            ),
            "junk": b"\xff",
        }
        path.write_bytes(contents[kind])
    with pytest.raises(UsageError, match="cannot sign with") as e:
        make_signer(path)
    assert "\n" not in str(e.value)


LACKING = (
    "import sys; sys.modules[{name!r}] = None\nfrom redhost.cli import main\nmain(sys.argv[1:])"
)


@pytest.mark.parametrize("name", ["model_signing", "cryptography", "OpenSSL"])
@pytest.mark.parametrize(
    "command", [("new-key", "new.pem"), ("check", "x.whl", "--key", "author.pub.pem")]
)
def test_without_the_extra_a_key_is_exit_3_and_says_what_to_install(
    tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    new_key(tmp_path / "author.pem")
    (tmp_path / "x.whl").write_bytes(b"")
    code = LACKING.format(name=name)
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3 and "pip install 'redhost[sign]'" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "new.pem").exists()
