from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redhost.registry.errors import ManifestError
from redhost.registry.package.manifest import (
    BackboneManifest,
    Base,
    DenseRef,
    ExpertManifest,
    FileRef,
    RowsRef,
    dumps,
    parse_backbone,
    parse_expert,
    parts_of,
)
from redhost.registry.package.rules import check_valid

ODD = st.sampled_from([None, True, -1, 0, 2**70, 1e300, "", "a\n", "\ud800", [], {}, [[]], "x:y"])


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_anywhere_is_a_violation_or_valid(make_expert: Any, data: st.DataObject) -> None:
    manifest = json.loads(make_expert("a")["expert.json"])
    key = data.draw(st.sampled_from(sorted(manifest)))
    if isinstance(manifest[key], dict) and data.draw(st.booleans()):
        manifest[key][data.draw(st.sampled_from(sorted(manifest[key])))] = data.draw(ODD)
    else:
        manifest[key] = data.draw(ODD)
    found = parse_expert(json.dumps(manifest).encode())
    if found.value:
        check_valid(found.value)
        assert parse_expert(dumps(found.value)) == found
    else:
        assert found.violations[0].code.startswith("manifest_")


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused_without_a_crash(data: bytes) -> None:
    assert parse_expert(data).violations
    assert parse_backbone(data).violations


CORRECT = "Correct the manifest."
BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 0}, "temperature: expected `float` > 0.0, found another value", CORRECT),
    ({"rank": "4"}, "rank: expected int, found str", CORRECT),
    ({"license": None}, "license: expected str, found null", CORRECT),
    ({"weights": {}}, "weights.file: expected a value, found nothing", CORRECT),
    (
        {"id": "A"},
        "id: expected `str` matching regex '^[a-z0-9][a-z0-9._-]{0,63}$', found another value",
        CORRECT,
    ),
    (
        {"writes.space": "elsewhere"},
        "writes.space: expected a value of the schema, found Invalid enum value 'elsewhere'",
        CORRECT,
    ),
    ({"training.metrics.x": "high"}, "training.metrics[...]: expected float, found str", CORRECT),
    (
        {"rnak": 4},
        "rnak: expected no such key, found rnak",
        "Did you mean 'rank'? Remove the key, or upgrade redhost.",
    ),
    (
        {"card.zzzz": ""},
        "card.zzzz: expected no such key, found zzzz",
        "Remove the key, or upgrade redhost.",
    ),
]


@pytest.mark.parametrize(("change", "reason", "hint"), BROKEN)
def test_what_is_wrong_is_stated_with_its_place(
    make_expert: Any, change: dict[str, Any], reason: str, hint: str
) -> None:
    changed = {"training.metrics": {}, **change} if "training.metrics.x" in change else change
    (found,) = parse_expert(make_expert("a", change=changed)["expert.json"]).violations
    assert (found.reason, found.hint) == (reason, hint)
    kind = "manifest_unknown_key" if "Remove" in hint else "manifest_field"
    assert found.code == kind


UPGRADE = "Upgrade with 'pip install -U redhost', or install an older version of the package."


def test_keys_that_are_not_used_are_not_written(make_expert: Any) -> None:
    manifest = parse_expert(make_expert("a")["expert.json"]).unwrap("it")
    assert manifest.schema == "redhost.expert/1" and b'"min_host"' not in dumps(manifest)
    assert b'"tensors"' not in dumps(manifest)


OTHER = "1.3", "expert/1", "redhost.backbone/1", *(f"redhost.expert/{v}" for v in ("1.0", "0", ""))


@pytest.mark.parametrize("schema", OTHER)
def test_there_is_one_version_and_no_other_is_read(make_expert: Any, schema: str) -> None:
    change = {"schema": schema, "a_key_of_another_version": 1}
    (found,) = parse_expert(make_expert("a", change=change)["expert.json"]).violations
    assert (found.code, found.field) == ("manifest_field", "schema")
    assert (found.expected, found.found) == ("redhost.expert/1", schema)


@pytest.mark.parametrize("schema", ["redhost.expert/2", "redhost.expert/10"])
def test_a_newer_schema_is_refused_by_its_version_and_not_by_its_keys(
    make_expert: Any, schema: str
) -> None:
    change = {"schema": schema, "a_key_of_tomorrow": 1, "rank": "of another type"}
    (found,) = parse_expert(make_expert("a", change=change)["expert.json"]).violations
    assert (found.code, found.field) == ("manifest_newer", "schema")
    assert found.expected == "redhost.expert/1"
    assert (found.found, found.hint) == (schema, UPGRADE)
    error = found.error("expert 'a'")
    assert type(error) is ManifestError and str(error).count("redhost.expert/1,") == 1


def test_a_backbone_of_a_newer_schema_is_refused_too(make_backbone: Any) -> None:
    changed = {**json.loads(dumps(make_backbone())), "schema": "redhost.backbone/2", "new": 1}
    (found,) = parse_backbone(json.dumps(changed).encode()).violations
    assert (found.code, found.found) == ("manifest_newer", "redhost.backbone/2")


def test_a_manifest_may_ask_for_a_later_host(
    make_expert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_expert("a", change={"min_host": "0.10", "a_key_of_tomorrow": 1})["expert.json"]
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.9.3")
    (found,) = parse_expert(data).violations
    assert (found.code, found.field) == ("manifest_newer", "min_host")
    assert (found.expected, found.found, found.hint) == ("redhost 0.10", "redhost 0.9.3", UPGRADE)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.10.0")
    (found,) = parse_expert(data).violations
    assert found.code == "manifest_unknown_key"  # new enough: now its keys are judged


def test_a_host_that_is_new_enough_reads_it(make_expert: Any, make_backbone: Any) -> None:
    data = make_expert("a", change={"min_host": "0.1"})["expert.json"]
    assert b'"min_host": "0.1"' in dumps(parse_expert(data).unwrap("it"))
    changed = {**json.loads(dumps(make_backbone())), "min_host": "0.1.0"}
    assert parse_backbone(json.dumps(changed).encode()).unwrap("it").min_host == "0.1.0"


@pytest.mark.parametrize(
    "change", [{"min_host": ">=1"}, {"min_host": None}, {"schema": 1}, {"schema": None}]
)
def test_a_version_that_is_none_is_an_ordinary_fault(make_expert: Any, change: Any) -> None:
    (found,) = parse_expert(make_expert("a", change=change)["expert.json"]).violations
    assert (found.code, found.field) == ("manifest_field", next(iter(change)))


def test_a_key_that_is_missing_is_named(make_expert: Any) -> None:
    changed = json.loads(make_expert("a")["expert.json"])
    del changed["license"]
    (found,) = parse_expert(json.dumps(changed).encode()).violations
    assert found.reason == "license: expected a value, found nothing"


def test_a_bad_key_is_reported_with_its_place(make_backbone: Any) -> None:
    changed = json.loads(dumps(make_backbone()))
    changed["base"]["files"] = {"../x": "a" * 64}
    (found,) = parse_backbone(json.dumps(changed).encode()).violations
    assert (found.code, found.field) == ("manifest_field", "base.files")


REBUILD, SHORTEN = "Rebuild the package.", "Shorten the manifest."


@pytest.mark.parametrize(
    ("data", "reason", "hint"),
    [
        (b"", "expected a JSON object, found Expecting value", REBUILD),
        (b"{nope", "expected a JSON object, found Expecting property name", REBUILD),
        (b"\xff", "expected a JSON object, found 'utf-8' codec", REBUILD),
        (b'{"a":' * 50_000, "expected a JSON object, found maximum recursion depth", REBUILD),
        (b'{"b":{"id":1,"id":2}}', "expected a JSON object, found the key 'id' stands", REBUILD),
        (b"{" * 200_001, "expected at most 200,000 parts, found 200,001", SHORTEN),
        (b"[" * 200_001, "expected at most 200,000 parts, found 200,001", SHORTEN),
        (b":" * 200_001, "expected at most 200,000 parts, found 200,001", SHORTEN),
        (b" " * 4_194_305, "expected at most 4,194,304 bytes, found 4,194,305 bytes", SHORTEN),
    ],
)
def test_what_is_no_json_of_ours(data: bytes, reason: str, hint: str) -> None:
    for [found] in (parse_expert(data).violations, parse_backbone(data).violations):
        assert (found.code, found.field, found.hint) == ("manifest_json", "manifest", hint)
        assert found.reason.startswith(f"manifest: {reason}")


def test_the_limits_themselves_are_let_in(make_expert: Any) -> None:
    data = make_expert("a")["expert.json"]
    assert parse_expert(data.ljust(4_194_304)).value
    (found,) = parse_expert(b":" * 200_000).violations
    assert found.hint == REBUILD


def test_manifests_are_written_for_people(make_expert: Any) -> None:
    manifest = parse_expert(make_expert("a")["expert.json"]).unwrap("it")
    text = dumps(manifest).decode()
    assert text.endswith('\n  "license": "Apache-2.0"\n}\n')
    assert text.startswith('{\n  "schema": "redhost.expert/1",\n  "id": "a",\n')


def test_backbones_round_trip(make_backbone: Any) -> None:
    manifest = make_backbone()
    assert parse_backbone(dumps(manifest)).value == manifest


def test_every_file_of_a_package_has_a_place_in_its_digest(make_backbone: Any) -> None:
    """In this order, which digests of packages made before were taken in."""
    files = {"model.safetensors": "1" * 64, "config.json": "2" * 64}
    manifest = make_backbone(
        base=Base(kind="carried", files=files),
        evaluation=RowsRef(file="evaluation.jsonl", sha256="3" * 64, rows=1),
        background=RowsRef(file="background.jsonl", sha256="4" * 64, rows=1),
        classifier=FileRef(file="classifier.safetensors", sha256="5" * 64),
        delta=FileRef(file="delta.safetensors", sha256="6" * 64),
        dense=(
            DenseRef(file="first.safetensors", sha256="7" * 64, activation="tanh"),
            DenseRef(file="second.safetensors", sha256="8" * 64, activation="tanh"),
        ),
    )
    assert parts_of(manifest) == (
        ("delta", "delta.safetensors", "6" * 64),
        ("classifier", "classifier.safetensors", "5" * 64),
        ("background", "background.jsonl", "4" * 64),
        ("evaluation", "evaluation.jsonl", "3" * 64),
        ("dense/0", "first.safetensors", "7" * 64),
        ("dense/1", "second.safetensors", "8" * 64),
        ("base/config.json", "config.json", "2" * 64),
        ("base/model.safetensors", "model.safetensors", "1" * 64),
    )


def test_every_file_of_an_expert_has_a_place_in_its_digest(make_expert: Any) -> None:
    of_its_map = {"file": "map.safetensors", "sha256": "2" * 64}
    change = {
        "weights": {"file": "expert.safetensors", "sha256": "3" * 64},
        "ported": {
            "file": "author.json",
            "sha256": "1" * 64,
            "digest": "9" * 64,
            "width": 24,
            "map": of_its_map,
        },
        "card.sha256": "4" * 64,
        "canary.sha256": "5" * 64,
        "files": {"rules.json": "6" * 64, "head.safetensors": "7" * 64},
    }
    manifest = parse_expert(make_expert("a", change=change)["expert.json"]).unwrap("it")
    assert parts_of(manifest) == (
        ("weights", "expert.safetensors", "3" * 64),
        ("ported", "author.json", "1" * 64),
        ("card", "card.jsonl", "4" * 64),
        ("canary", "canary.safetensors", "5" * 64),
        ("ported/map", "map.safetensors", "2" * 64),
        ("files/head.safetensors", "head.safetensors", "7" * 64),
        ("files/rules.json", "rules.json", "6" * 64),
    )


def test_the_schema_is_closed_and_printable() -> None:
    schema = json.loads(json.dumps(msgspec.json.schema(ExpertManifest)))
    assert schema["$defs"]["ExpertManifest"]["additionalProperties"] is False
    assert "BackboneManifest" not in schema["$defs"]
    assert "BackboneManifest" in msgspec.json.schema(BackboneManifest)["$defs"]


def test_threads_may_read_the_first_manifests_of_a_process(make_expert: Any, tmp_path) -> None:
    """msgspec ended one process in four here, when none of its types had been used before."""
    (tmp_path / "expert.json").write_bytes(make_expert("a")["expert.json"])
    script = """
import sys, threading
sys.setswitchinterval(1e-6)
from redhost.registry.package.manifest import parse_expert
data, start = open(sys.argv[1], "rb").read(), threading.Barrier(16)
def read():
    start.wait()
    parse_expert(data).unwrap("it")
threads = [threading.Thread(target=read) for _ in range(16)]
[t.start() for t in threads], [t.join() for t in threads]
"""
    for _ in range(10):
        command = [sys.executable, "-c", script, str(tmp_path / "expert.json")]
        assert subprocess.run(command, check=False).returncode == 0
