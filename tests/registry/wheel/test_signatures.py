"""Signed wheels: real keys, real signatures, and what does not pass for one."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redhost_author.signing import make_signer, new_key

from redhost.registry.errors import IntegrityError
from redhost.registry.package.checked import Checked
from redhost.registry.wheel import wheel as wheels
from redhost.registry.wheel.signing import PublicKey, read_keys, signature_path
from redhost.registry.wheel.wheel import open_wheel, read_wheel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of an author and of somebody else."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("author", "other"):
        new_key(folder / f"{name}.pem")
    return folder


@pytest.fixture
def author(folder: Path) -> PublicKey:
    return read_keys([folder / "author.pub.pem"])[0]


@pytest.fixture
def other(folder: Path) -> PublicKey:
    return read_keys([folder / "other.pub.pem"])[0]


@pytest.fixture
def signed(folder: Path, draft: Any, tmp_path: Path) -> Path:
    """A sound wheel that the author signed."""
    wheel = draft("a").write(tmp_path)
    make_signer(folder / "author.pem")(wheel)
    return wheel


def codes(path: Path, *keys: PublicKey) -> list[str]:
    return [v.code for v in read_wheel(path, keys=keys).violations]


def test_a_signed_wheel_is_opened_and_names_its_signer(
    signed: Path, author: PublicKey, other: PublicKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def online(*_: object) -> None:
        raise AssertionError("went online")

    monkeypatch.setattr(socket.socket, "connect", online)
    found = open_wheel(signed, keys=[other, author])
    assert (found.signer, found.data) == (author.fingerprint, signed.read_bytes())
    assert open_wheel(signed).signer == ""  # nobody asked


def test_a_signature_is_over_the_sha256_of_the_wheel(signed: Path) -> None:
    envelope = json.loads(signature_path(signed).read_bytes())["dsseEnvelope"]
    [resource] = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["resources"]
    assert (resource["algorithm"], resource["digest"]) == ("sha256", open_wheel(signed).sha256)


Attack = Callable[[Path, Path, Any], object]


def unsigned(wheel: Path, _: Path, __: Any) -> None:
    signature_path(wheel).unlink()


def another_wheel(wheel: Path, folder: Path, draft: Any) -> None:
    """Put another sound wheel in its place: its own RECORD agrees with it."""
    draft("a", domain="whatever the attacker likes").write(wheel.parent)


def by_another_key(wheel: Path, folder: Path, draft: Any) -> None:
    another_wheel(wheel, folder, draft)
    make_signer(folder / "other.pem")(wheel)


def in_anothers_name(wheel: Path, folder: Path, draft: Any) -> None:
    """Sign with another key, and claim that the author's did."""
    claimed = json.loads(signature_path(wheel).read_bytes())["verificationMaterial"]
    by_another_key(wheel, folder, draft)
    forged = json.loads(signature_path(wheel).read_bytes())
    signature_path(wheel).write_text(json.dumps({**forged, "verificationMaterial": claimed}))


def of_another_wheel(wheel: Path, folder: Path, draft: Any) -> None:
    """Bring the author's signature of something else."""
    (wheel.parent / "b").mkdir()
    second = draft("b").write(wheel.parent / "b")
    signature = make_signer(folder / "author.pem")(second)
    signature_path(wheel).write_bytes(signature.read_bytes())


def says(data: bytes) -> Attack:
    return lambda wheel, folder, draft: signature_path(wheel).write_bytes(data)


ATTACKS: dict[str, tuple[Attack, str]] = {
    "unsigned": (unsigned, "signature_missing"),
    "another wheel": (another_wheel, "signature_wrong"),
    "by another key": (by_another_key, "signature_wrong"),
    "in another's name": (in_anothers_name, "signature_wrong"),
    "of another wheel": (of_another_wheel, "signature_wrong"),
    "empty": (says(b""), "signature_wrong"),
    "not JSON": (says(b"\xff{"), "signature_wrong"),
    "null": (says(b"null"), "signature_wrong"),
    "no key": (says(b'{"verificationMaterial": {"publicKey": {}}}'), "signature_wrong"),
    "deep": (says(b"[" * 60000), "signature_wrong"),
    "large": (says(b" " * 2**17), "signature_wrong"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_refuses(signed: Path, author: PublicKey, folder: Path, draft: Any, name: str) -> None:
    attack, code = ATTACKS[name]
    attack(signed, folder, draft)
    assert codes(signed, author) == [code]
    with pytest.raises(IntegrityError, match=code) as e:
        open_wheel(signed, keys=[author])
    assert "\n" not in str(e.value) and signature_path(signed).name in str(e.value)


@pytest.mark.parametrize("name", ATTACKS)
def test_control_without_keys_or_without_the_check_lets_it_in(
    signed: Path,
    author: PublicKey,
    folder: Path,
    draft: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ATTACKS[name][0](signed, folder, draft)
    assert codes(signed) == []  # what we guard against
    monkeypatch.setattr(wheels, "read_signature", lambda _: Checked(b""))
    monkeypatch.setattr(wheels, "verify", lambda *_, **__: Checked(author))
    assert open_wheel(signed, keys=[author]).signer == author.fingerprint


def test_no_broken_signature_crashes_or_vouches_for_other_bytes(
    signed: Path, author: PublicKey, draft: Any, folder: Path
) -> None:
    whole, random, refused = signature_path(signed).read_bytes(), Random(0), 0
    good = signed.read_bytes()
    another_wheel(signed, folder, draft)
    bad = signed.read_bytes()
    for _ in range(60):
        broken = bytearray(whole)
        broken[random.randrange(len(broken))] ^= 1 << random.randrange(8)
        signature_path(signed).write_bytes(broken)
        signed.write_bytes(bad)
        assert codes(signed, author) == ["signature_wrong"]
        signed.write_bytes(good)
        refused += bool(codes(signed, author))  # not all: what the key did not sign says little
    assert refused > 50
    signature_path(signed).write_bytes(whole)
    assert codes(signed, author) == []


def test_signing_again_replaces_the_signature(signed: Path, folder: Path, draft: Any) -> None:
    another_wheel(signed, folder, draft)
    make_signer(folder / "author.pem")(signed)
    assert codes(signed, *read_keys([folder / "author.pub.pem"])) == []


OPEN = """
import sys
from pathlib import Path
from redhost.registry.wheel.signing import read_keys
from redhost.registry.wheel.wheel import open_wheel
open_wheel(Path(sys.argv[1]), keys=read_keys(sys.argv[2:]))
print(sorted({"model_signing", "sigstore", "cryptography"} & set(sys.modules)))
"""


def test_the_extra_is_imported_only_for_keys(signed: Path, folder: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-c", OPEN, str(signed), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert run() == "[]"
    assert "model_signing" in run(str(folder / "author.pub.pem"))
