"""Replicas may write anything under `replicas/`: what cannot be a report is refused by name."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from redhost_fleet import cli
from redhost_fleet.documents import (
    Comparison,
    GenerationDocument,
    Marker,
    ReplicaReport,
    encode,
)
from redhost_fleet.fleet import Fleet
from redhost_fleet.rollout import judge
from redhost_fleet.status import fleet_status, live_shares

import redhost

GOOD = Comparison(better=30, worse=20, same=2000)
"""Enough that one replica's labels promote a canary."""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A store with two generations of no files: 1 in production, 2 on trial."""
    fleet = Fleet(str(tmp_path / "store"))
    fleet.storage.create("redhost-fleet.json", encode(Marker(schema="redhost.fleet/1")))
    for number in (1, 2):
        document = GenerationDocument(
            number=number, digest=str(number) * 64, files={}, packages={}, sizes={}
        )
        fleet.storage.create(f"generations/{number}.json", encode(document))
    fleet.promote(1)
    fleet.promote(2, stage="canary", share=0.1)
    return fleet


def report(replica: str, counts: Comparison | None = None, **fields: Any) -> ReplicaReport:
    comparisons = {} if counts is None else {"range1": counts}
    return ReplicaReport(
        replica=replica, generation=1, production=1, canary=1, comparisons=comparisons, **fields
    )


def write(fleet: Fleet, name: str, content: object) -> None:
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    fleet.storage.write(f"replicas/{name}", data)


def refused(fleet: Fleet) -> dict[str, str]:
    return {r.file: r.reason for r in fleet_status(fleet).refused}


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        _socket,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.parent / "good.json"),
        lambda path: path.symlink_to(path),
        _sparse,
    ],
    ids=["pipe", "folder", "socket", "device", "link", "loop", "sparse"],
)
def test_what_is_no_regular_small_file_is_refused_and_stops_nothing(
    fleet: Fleet, make: Callable[[Path], object]
) -> None:
    fleet.report(report("good", GOOD))
    make(Path(fleet.storage.url) / "replicas" / "odd.json")
    assert [*refused(fleet)] == ["odd.json"]
    assert [r.report.replica for r in fleet_status(fleet).replicas] == ["good"]
    assert fleet.report_of("odd") is None  # or the replica of that name would never run a trial
    decided = judge(fleet)
    assert decided is not None and decided[0].action == "promote"


FIELDS: dict[str, Any] = {
    "no time": {"when": "yesterday"},
    "an empty time": {"when": ""},
    "a time without a zone": {"when": "2026-01-01T00:00:00"},
    "a time to come": {"when": (datetime.now(UTC) + timedelta(days=400)).isoformat()},
    "the last time": {"when": "9999-12-31T23:59:59-23:59"},
    "a long time": {"when": "2026-01-01T00:00:00+00:00" + " " * 10**5},
    "a number as time": {"when": 1},
    "a negative entry": {"production": -1},
    "an entry of many digits": {"canary": 10**30},
    "another's id": {"replica": "good"},
    "an id that is a path": {"replica": "../../stages/production/00000002"},
    "negative texts": {"texts": -5},
    "half a text": {"texts": 0.5},
    "texts that are true": {"texts": True},
    "shares of more than all": {"shares": {"a": 0.9, "b": 0.9}},
    "a negative share": {"shares": {"a": -1.0, "b": 2.0}},
    "a share that is no number": {"shares": {"a": math.nan}},
    "a negative drift": {"drift": {"a": {"texts": 900, "distance": -1.0}}},
    "experts without end": {"priors": {str(n): 0.0 for n in range(6000)}},
    "a very long reason": {"reason": "x" * 5000},
    "negative counts": {"comparisons": {"a": {"better": -1}}},
    "counts of many digits": {"comparisons": {"a": {"better": 10**15}}},
    "more than time allows": {"comparisons": {"a": {"better": 10**9}}},
    "more over all experts": {"comparisons": {str(n): {"better": 10**7} for n in range(9)}},
    "more texts than time allows": {"comparisons": {"a": {"texts": 10**9}}},
    "more agreement than texts": {"comparisons": {"a": {"texts": 5, "agree": 6}}},
    "more declined than texts": {"comparisons": {"a": {"canary_declined": 1}}},
    "more declined alone": {"comparisons": {"a": {"texts": 9, "only_declined": 1}}},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_an_impossible_report_is_refused_by_name_and_never_counted(
    fleet: Fleet, fields: dict[str, Any]
) -> None:
    fleet.report(report("good", Comparison(same=7)))
    forged = {**msgspec.to_builtins(report("odd", GOOD)), **fields}
    write(fleet, "odd.json", forged)
    assert [*refused(fleet)] == ["odd.json"]
    decided = judge(fleet)
    assert decided is not None and decided[0].action == "hold" and decided[0].labelled == 7
    shown = CliRunner().invoke(cli.fleet, ["status", "--fleet", fleet.storage.url])
    assert shown.exit_code == 0 and "odd.json: " in shown.output and "good" in shown.output


BYTES = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "half a pair": b'{"replica": "odd", "url": "\\ud800"}',
    "a list": b"[]",
    "deep nesting": b'{"replica": "odd", "x": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    "many digits": b'{"replica": "odd", "texts": ' + b"9" * 10**5 + b"}",
    "infinity": b'{"replica": "odd", "texts": 1e999}',
    "much": b'{"replica": "odd"' + b" " * 2**21 + b"}",
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_bytes_that_are_no_report_are_refused(fleet: Fleet, data: bytes) -> None:
    write(fleet, "odd.json", data)
    assert [*refused(fleet)] == ["odd.json"] and fleet.reports() == []


def test_names_that_are_no_ids_are_refused_and_shown_in_plain_letters(fleet: Fleet) -> None:
    folder = os.fsencode(Path(fleet.storage.url) / "replicas")
    fleet.report(report("good"))
    for name in (b"odd\x1b[2J.json", b"odd\xff.json", b"odd.txt", b"\n.json"):
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(encode(report("odd")))
    assert len(refused(fleet)) == 4 and all(name.isascii() for name in refused(fleet))
    shown = CliRunner().invoke(cli.fleet, ["status", "--fleet", fleet.storage.url])
    assert shown.exit_code == 0 and "\x1b" not in shown.output


def test_reasons_of_replicas_reach_no_terminal_as_codes(fleet: Fleet) -> None:
    fleet.report(report("r", reason="\x1b[2Jgone\nmore", refused="\x1b[2Jgone"))
    for command in ("status", "judge", "history"):
        options = ["--stage", "canary"] if command == "history" else []
        shown = CliRunner().invoke(cli.fleet, [command, "--fleet", fleet.storage.url, *options])
        assert shown.exit_code == 0 and "\x1b" not in shown.output and "gone" in shown.output


def test_of_very_many_files_only_the_first_are_read(fleet: Fleet) -> None:
    folder = Path(fleet.storage.url) / "replicas"
    folder.mkdir()
    for n in range(1200):
        (folder / f"r{n}.json").write_bytes(encode(report(f"r{n}")))
    status = fleet_status(fleet)
    assert len(status.replicas) == 1000 and "200 files" in status.refused[0].reason


def test_one_replica_alone_promotes_nothing_where_others_report(fleet: Fleet) -> None:
    fleet.report(report("honest-1", Comparison(same=40)))
    fleet.report(report("honest-2"))
    fleet.report(report("liar", Comparison(better=10**6, same=10**6)))
    assert refused(fleet) == {}
    decided = judge(fleet)
    assert decided is not None and decided[0].action == "hold"
    assert "counts of liar" in decided[0].why
    last = fleet.stages["production"].last()
    assert last is not None and last.generation == 1


def test_two_replicas_that_agree_promote_and_one_suffices_alone(fleet: Fleet) -> None:
    fleet.report(report("a", GOOD))
    fleet.report(report("b", Comparison(same=3)))
    first = judge(fleet)
    assert first is not None and first[0].action == "hold"
    fleet.report(report("b", GOOD))
    second = judge(fleet)
    assert second is not None and second[0].action == "promote"
    fleet.promote(1)
    fleet.promote(2, stage="canary")
    for replica in ("a", "b"):
        fleet.forget(replica)
    alone = msgspec.structs.replace(report("a", GOOD), production=3, canary=3)
    fleet.report(alone)
    third = judge(fleet)
    assert third is not None and third[0].action == "promote"


def test_shares_of_experts_that_most_replicas_do_not_have_are_left_out(fleet: Fleet) -> None:
    for name, shares in (
        ("a", {"x": 0.5, "y": 0.5}),
        ("b", {"z": 1.0}),
        ("c", {"x": 0.7, "y": 0.3}),
    ):
        fleet.report(msgspec.structs.replace(report(name), shares=shares, texts=100))
    found = live_shares(fleet_status(fleet))
    assert found is not None and found.shares == pytest.approx({"x": 0.6, "y": 0.4})


ENTRY = {"schema": "redhost.stage/1", "sequence": 2, "generation": 1, "by": "x"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("generations/1.json", {"number": 1}),
        ("generations/1.json", b'{"x": ' + b"[" * 10**5),
        ("stages/production/00000002.json", {**ENTRY, "when": "soon"}),
        ("stages/production/00000002.json", {**ENTRY, "why": "x" * 10**5}),
        ("stages/production/00000002.json", {**ENTRY, "digest": "../.."}),
        ("stages/production/00000002.json", {**ENTRY, "sequence": 3}),
        ("stages/production/00000002.json", b" " * 2**25),
    ],
)
def test_other_documents_of_the_store_are_typed_and_bounded(
    fleet: Fleet, name: str, content: object
) -> None:
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    fleet.storage.write(name, data)
    with pytest.raises(
        redhost.errors.StoreError, match=r"cannot understand|cannot use|damaged"
    ) as e:
        fleet.document(1)
        fleet.stages["production"].last()
    assert len(str(e.value)) < 2000


def test_files_with_odd_numbers_are_no_generations_and_no_entries(fleet: Fleet) -> None:
    for name in ("٣.json", "9" * 200 + ".json", "0.json", "-1.json"):
        fleet.storage.write(f"generations/{name}", b"{}")
    for name in ("٠٠٠٠٠٠٠٩.json", "9" * 200 + ".json"):
        fleet.storage.write(f"stages/production/{name}", b"{}")
    assert fleet.numbers() == [1, 2] and fleet.stages["production"].sequences() == [1]
