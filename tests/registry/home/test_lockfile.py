from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from redhost.registry.environment.status import check_packages
from redhost.registry.errors import StoreError
from redhost.registry.home.composition import LOCK, Provenance, lock_for, read_lock
from redhost.registry.package.manifest import dumps
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.queries.inventory import drift


def test_reads_what_publish_wrote(home: Path, publish: Any) -> None:
    composition = publish("b", "a")
    lock = read_lock(home / LOCK)
    assert lock == lock_for(composition)
    assert lock is not None
    assert list(lock.experts) == ["a", "b"]
    assert lock.settings == {"tolerance": 1.0}
    assert read_lock(home / "nowhere") is None
    (home / LOCK).write_bytes(b"{}")
    with pytest.raises(StoreError):
        read_lock(home / LOCK)


def test_drift(site: Any, home: Path, publish: Any, make_backbone: Any) -> None:
    for name in ("same", "changed", "new", "off"):
        site.expert(name)
    site.expert("bad", change={"weights.sha256": "0" * 64})
    listings = check_packages(site.experts(), backbone=make_backbone(), disabled={"off"})
    digests = {x.id: x.digest or "" for x in listings}
    composition = publish("bad", "same", "changed", "gone", "off")
    lock = lock_for(composition)
    same = Provenance(dist="d", version="1", digest=digests["same"])
    lock = msgspec.structs.replace(lock, experts={**lock.experts, "same": same})
    found = drift(lock, listings, fingerprint="e" * 64, plugins={"plug": "1"})
    assert [(x.id, x.kind) for x in found] == [
        ("backbone", "changed"),
        ("bad", "broken"),
        ("changed", "changed"),
        ("gone", "missing"),
        ("new", "new"),
        ("off", "disabled"),
        ("plug", "new"),
    ]
    assert sha256_hex(b"bytes of changed")[:12] in found[2].locked


def test_records_from_before_wheels_were_known_keep_their_digests(publish: Any) -> None:
    """Each record carries the digest of its own bytes: a key that appears would damage them all."""
    composition = publish("a")
    for key in (b'"wheel"', b'"signer"'):
        assert key not in dumps(composition) and key not in dumps(lock_for(composition))
    [member] = composition.experts
    pinned = msgspec.structs.replace(member, wheel="f" * 64, signer="e" * 64)
    known = msgspec.structs.replace(composition, experts=(pinned,))
    locked = lock_for(known).experts["a"]
    assert (locked.wheel, locked.signer) == ("f" * 64, "e" * 64)
