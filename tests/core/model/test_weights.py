"""Weights come from the bytes that were checked, and a broken file is an answer, not a crash."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch

import redhost
from redhost.core.backbones import loading as trunk
from redhost.core.model.canary import check_canary
from redhost.core.routers.cards import read_card
from redhost.registry.errors import CardError
from redhost.registry.package.manifest import dumps, parse_expert
from redhost.registry.package.readers import read_expert
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.testing import tiny_backbone


def overwrite(path: Path) -> None:
    """Change a file in place, as a careless copy does."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(path.stat().st_size // 4))


def test_weights_stay_when_the_file_they_came_from_changes(tmp_path: Path) -> None:
    backbone = redhost.Backbone.load(f"hf:{tiny_backbone(tmp_path / 'm')}")
    before = backbone.encode(["some text"])
    overwrite(tmp_path / "m" / "model.safetensors")
    assert torch.equal(backbone.encode(["some text"]), before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_file_of_a_model_stays_mapped(tmp_path: Path) -> None:
    backbone = redhost.Backbone.load(f"hf:{tiny_backbone(tmp_path / 'm')}")
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert backbone.width == 16


def test_control_that_leaves_the_file_mapped_changes_under_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunk, "_unmap", lambda model: None)
    backbone = redhost.Backbone.load(f"hf:{tiny_backbone(tmp_path / 'm')}")
    before = backbone.encode(["some text"])
    overwrite(tmp_path / "m" / "model.safetensors")
    assert not torch.equal(backbone.encode(["some text"]), before)


def test_a_model_in_a_pickle_is_refused(tmp_path: Path) -> None:
    folder = tiny_backbone(tmp_path / "m")
    tensors = safetensors.torch.load((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(redhost.MissingError, match="cannot be loaded"):
        redhost.Backbone.load(f"hf:{folder}")


def resealed(folder: Path, role: str, data: bytes) -> dict[str, bytes]:
    """Return an expert's files with another canary or card, and the manifest made to fit."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".py"}
    manifest = parse_expert(files["expert.json"]).unwrap("it")
    ref = msgspec.structs.replace(getattr(manifest, role), sha256=sha256_hex(data))
    files["expert.json"] = dumps(msgspec.structs.replace(manifest, **{role: ref}))
    return {**files, ref.file: data}


def test_a_canary_in_half_precision_is_computed_like_any_other(expert_folders) -> None:
    folder = expert_folders["red"]
    tensors = safetensors.torch.load((folder / "canary.safetensors").read_bytes())
    half = safetensors.torch.save({name: t.half() for name, t in tensors.items()})
    files = read_expert(resealed(folder, "canary", half)).unwrap("it")
    expert = redhost.plugins.Plugins(()).make(
        "redhost_register_forms",
        files.manifest.form,
        redhost.Expert,
        what="it",
        manifest=files.manifest,
        tensors=safetensors.torch.load(files.weights),
        files=files.files,
        bus=None,
    )
    found = check_canary(files.manifest, expert, half)
    assert found is None or found.code == "canary_values"  # rounded, but never an exception
    wild = {name: torch.full_like(t, 3e38) for name, t in tensors.items()}
    found = check_canary(files.manifest, expert, safetensors.torch.save(wild))
    assert found is not None and found.code == "canary_values"


@pytest.mark.parametrize(
    "line", [b"{nope", b'{"text": 1}', b"\xff", b'{"text":"x","label":"zz","part":"fit"}']
)
def test_one_broken_card_leaves_out_one_expert(installed, home, expert_folders, line) -> None:
    card = (expert_folders["red"] / "card.jsonl").read_bytes().splitlines()
    for name, data in resealed(
        expert_folders["red"], "card", b"\n".join([line, *card[1:]]) + b"\n"
    ).items():
        (installed.package("red-expert-red") / name).write_bytes(data)
    installed.seal("red-expert-red")
    receipt = redhost.Host.open(
        home, backbone="toy", plugins=redhost.plugins.Plugins(())
    ).recompose()
    assert ("red", "card_rows") in [(x.id, x.code) for x in receipt.left_out]
    assert sorted(receipt.experts) == ["blue", "green"]


def test_sums_that_are_no_sums_are_refused_where_they_come_in(expert_folders) -> None:
    manifest = parse_expert((expert_folders["red"] / "expert.json").read_bytes()).unwrap("it")
    labels, width = len(manifest.labels), manifest.reads.width
    manifest = msgspec.structs.replace(
        manifest,
        card=msgspec.structs.replace(manifest.card, kind="statistics", file="c", fit=9, gate=0),
    )
    tensors = {
        "counts": torch.full((labels,), 9),
        "sums": torch.zeros(labels, width),
        "scatter": torch.eye(width)[tuple(torch.triu_indices(width, width))],
    }
    assert read_card(manifest, {"c": safetensors.torch.save(tensors)}).kind == "statistics"
    tensors["scatter"][0] = -1e4
    with pytest.raises(CardError, match="sums of none"):
        read_card(manifest, {"c": safetensors.torch.save(tensors)})
