"""Every way a package can be broken has its own code, and says expected, found and hint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from redhost.registry.package.checked import Checked, Violation
from redhost.registry.package.discover import Package
from redhost.registry.package.manifest import Base, FileRef, dumps, parse_expert
from redhost.registry.package.readers import read_backbone, read_expert, read_file
from redhost.registry.package.rules import expected_tensors
from redhost.registry.package.safetensors_check import sha256_hex

NAN = {"U": np.full((4, 16), np.nan, "f4"), "V": np.ones((16, 4), "f4")}
CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "not JSON": ({"raw": {"expert.json": b"{nope"}}, "manifest_json", "manifest"),
    "key twice": ({"raw": {"expert.json": b'{"id":"a","id":"b"}'}}, "manifest_json", "manifest"),
    "surrogate": ({"raw": {"expert.json": b'{"id":"\\ud800"}'}}, "manifest_json", "manifest"),
    "unknown key": ({"change": {"rnak": 4}}, "manifest_unknown_key", "rnak"),
    "unknown key inside": ({"change": {"card.sha": ""}}, "manifest_unknown_key", "card.sha"),
    "wrong type": ({"change": {"rank": "4"}}, "manifest_field", "rank"),
    "infinite": ({"change": {"temperature": 0}}, "manifest_field", "temperature"),
    "path": ({"change": {"weights.file": "../x"}}, "manifest_field", "weights.file"),
    "newline": ({"change": {"id": "a\n"}}, "manifest_field", "id"),
    "bus range": ({"change": {"bus_api": "newest"}}, "manifest_field", "bus_api"),
    "no labels": ({"change": {"labels": []}}, "manifest_field", "labels"),
    "label twice": ({"change": {"labels": ["2", "2"]}}, "manifest_field", "labels"),
    "rank 0": ({"change": {"rank": 0}}, "manifest_field", "rank"),
    "linear with rank": ({"change": {"form": "linear"}}, "manifest_field", "rank"),
    "one file for two": ({"change": {"canary.file": "Card.jsonl"}}, "manifest_field", "file"),
    "none with rows": ({"change": {"card.kind": "none"}}, "manifest_field", "card"),
    "many rows": ({"change": {"card.fit": 257}}, "card_rows", "card.fit"),
    "no fit rows": ({"change": {"card.fit": 0}}, "card_rows", "card.fit"),
    "other rows": ({"change": {"card.gate": 3}}, "card_rows", "card.jsonl"),
    "rank and tensors": ({"change": {"rank": 8}}, "weights_tensors", "U"),
    "NaN": ({"weights": NAN}, "weights_not_finite", "U"),
    "weights": ({"change": {"weights.sha256": "0" * 64}}, "weights_digest", "expert.safetensors"),
    "card": ({"raw": {"card.jsonl": b"{}"}}, "card_digest", "card.jsonl"),
    "canary": ({"change": {"canary.sha256": "0" * 64}}, "canary_digest", "canary.safetensors"),
}


def only(read: Checked[Any]) -> Violation:
    return read.violations[0]


def test_a_folder_in_place_of_a_file_is_a_violation(tmp_path: Path) -> None:
    (found,) = read_file(tmp_path, missing="weights_missing", limit=9).violations
    assert (found.code, found.found) == ("weights_missing", "something else")


def test_of_a_file_over_its_limit_no_byte_is_read(tmp_path: Path) -> None:
    """A terabyte would not fit into memory; control: one of as many bytes as allowed."""
    path = tmp_path / "weights"
    path.touch()
    os.truncate(path, 2**40 + 1)
    (found,) = read_file(path, missing="weights_missing", limit=2**40).violations
    assert found.code == "weights_too_large"
    os.truncate(path, 9)
    assert read_file(path, missing="weights_missing", limit=9).value == bytes(9)


def test_hands_on_the_bytes_that_were_hashed(make_expert: Any) -> None:
    files = make_expert("a")
    expert = read_expert(files).unwrap("it")
    assert expert.files == files
    assert expert.weights == files["expert.safetensors"]
    lines = [("manifest", "expert.json"), ("weights", "expert.safetensors")]
    lines += [("card", "card.jsonl"), ("canary", "canary.safetensors")]
    text = "".join(f"{role}\0{sha256_hex(files[name])}\n" for role, name in lines)
    assert expert.digest == sha256_hex(text.encode())


@pytest.mark.parametrize(("changes", "code", "field"), CHANGES.values(), ids=CHANGES)
def test_breach(make_expert: Any, changes: dict[str, Any], code: str, field: str) -> None:
    found = only(read_expert(make_expert("a", **changes)))
    assert (found.code, found.field) == (code, field)
    assert found.expected
    assert found.found
    assert found.hint
    assert "\n" not in found.reason


def test_a_cut_file_is_distinguished_from_a_changed_one(make_expert: Any) -> None:
    files = make_expert("a")
    whole = files["expert.safetensors"]
    cut = only(read_expert({**files, "expert.safetensors": whole[:-10]}))
    assert cut.code == "weights_header"
    assert cut.reason == (
        f"expert.safetensors size: expected {len(whole):,} bytes, "
        f"found {len(whole) - 10:,} bytes: the file is cut short"
    )
    changed = only(read_expert({**files, "expert.safetensors": whole[:-1] + b"?"}))
    assert changed.code == "weights_digest"


@pytest.mark.parametrize("role", ["weights", "card", "canary"])
def test_missing_files(make_expert: Any, role: str) -> None:
    files = make_expert("a")
    name = {"weights": "expert.safetensors", "card": "card.jsonl", "canary": "canary.safetensors"}
    del files[name[role]]
    assert only(read_expert(files)).code == f"{role}_missing"


def test_a_file_over_the_limit(make_expert: Any) -> None:
    files = make_expert("a", raw={"expert.safetensors": bytes(64 * 2**20 + 1)})
    assert only(read_expert(files)).code == "weights_too_large"


def test_reads_a_folder_and_waits_for_no_pipe(tmp_path: Path, make_expert: Any) -> None:
    for name, data in make_expert("a").items():
        (tmp_path / name).write_bytes(data)
    package = Package("expert", "d", "1", "m", tmp_path, False)
    assert read_expert(package).value
    (tmp_path / "card.jsonl").unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "card.jsonl")
    assert only(read_expert(package)).code == "card_missing"
    gone = Package("expert", "d", "1", "m", None, False)
    assert only(read_expert(gone)).code == "package_files"


@pytest.mark.parametrize(
    ("form", "space", "names"),
    [
        ("residual", "hidden", {"U": (4, 16), "V": (16, 4)}),
        ("residual", "logits", {"U": (4, 16), "V": (9, 4)}),
        ("residual", "labels", {"U": (4, 16), "V": (16, 4), "W": (3, 16), "b": (3,)}),
        ("linear", "hidden", {"W": (16, 16), "b": (16,)}),
        ("linear", "labels", {"W": (3, 16), "b": (3,)}),
        ("mlp", "logits", {"U": (4, 16), "u": (4,), "V": (9, 4), "v": (9,)}),
        ("mlp", "labels", {"U": (4, 16), "u": (4,), "V": (3, 4), "v": (3,)}),
    ],
)
def test_every_form_fixes_its_tensors(
    make_expert: Any, form: str, space: str, names: dict[str, tuple[int, ...]]
) -> None:
    files = make_expert(
        "a",
        weights={name: np.ones(shape, "f4") for name, shape in names.items()},
        change={"form": form, "writes.space": space, "rank": 0 if form == "linear" else 4},
        out={"hidden": 16, "labels": 3, "logits": 9}[space],
    )
    expert = read_expert(files).unwrap("it")
    assert expert.classes == (9 if space == "logits" else None)
    assert expected_tensors(expert.manifest, classes=9) == names


def test_a_plugins_form_brings_any_tensors_that_are_finite(make_expert: Any) -> None:
    change = {"form": "my-plugin:odd"}
    good = make_expert("a", weights={"q": np.ones(3, "f4")}, change=change)
    assert read_expert(good).value
    bad = make_expert("a", weights={"q": np.full(3, np.inf, "f4")}, change=change)
    assert only(read_expert(bad)).code == "weights_not_finite"


@pytest.mark.parametrize("shape", [[3], [2, 2], [4]])
def test_a_plugins_form_may_name_its_tensors(make_expert: Any, shape: list[int]) -> None:
    change = {"form": "my-plugin:odd", "tensors": {"q": shape}}
    read = read_expert(make_expert("a", weights={"q": np.ones(3, "f4")}, change=change))
    assert [(v.code, v.field) for v in read.violations] == (
        [] if shape == [3] else [("weights_tensors", "q")]
    )


def test_a_carried_backbone(make_backbone: Any) -> None:
    model, config = save({"w": np.ones(3, "f4")}), b"{}"
    rows = save({"weight": np.ones((3, 16), "f4")})
    files = {"model.safetensors": model, "config.json": config, "head.safetensors": rows}
    base = Base(
        kind="carried",
        files={name: sha256_hex(files[name]) for name in ("model.safetensors", "config.json")},
    )
    head = FileRef(file="head.safetensors", sha256=sha256_hex(rows))
    manifest = make_backbone(base=base, classifier=head)
    source = {**files, "backbone.json": dumps(manifest)}
    backbone = read_backbone(source).unwrap("it")
    assert backbone.files == source
    changed = only(read_backbone({**source, "config.json": b"[]"}))
    assert (changed.code, changed.field) == ("base_digest", "config.json")
    cut = only(read_backbone({**source, "model.safetensors": model[:-4]}))
    assert cut.code == "base_header"
    old = dumps(make_backbone(base=base, classifier=head, bus_api=">=2"))
    assert only(read_backbone({**source, "backbone.json": old})).code == "bus_api"


def test_errors_belong_to_the_tree(make_expert: Any) -> None:
    found = only(read_expert(make_expert("a", change={"rnak": 4})))
    error = found.error("expert 'a' (red-expert-a 0.1.0) was not attached")
    assert str(error) == (
        "expert 'a' (red-expert-a 0.1.0) was not attached: rnak: expected no such key, "
        "found rnak. Did you mean 'rank'? Remove the key, or upgrade redhost."
    )
    assert type(error).__name__ == "ManifestError"


def test_manifests_round_trip(make_expert: Any) -> None:
    manifest = parse_expert(make_expert("a")["expert.json"]).unwrap("it")
    assert parse_expert(dumps(manifest)).value == manifest


def test_what_happens_to_the_files_after_reading_changes_nothing(
    tmp_path: Path, make_expert: Any
) -> None:
    files = make_expert("a")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    expert = read_expert(Package("expert", "d", "1", "m", tmp_path, False)).unwrap("it")
    for name in files:
        os.truncate(tmp_path / name, 1)  # of a mapped file, the next look would be a SIGBUS
    assert expert.files == files
    assert read_expert(expert.files).value == expert


def test_every_file_is_opened_once(tmp_path: Path, make_expert: Any, monkeypatch: Any) -> None:
    """A second look at a file could see other bytes than those that were hashed."""
    files = make_expert("a")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    opened: list[str] = []
    real = os.open

    def noting(path: Any, *arguments: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *arguments)

    with monkeypatch.context() as patch:  # pytest itself opens folders
        patch.setattr(os, "open", noting)
        assert read_expert(Package("expert", "d", "1", "m", tmp_path, False)).value
    assert sorted(opened) == sorted(files)
