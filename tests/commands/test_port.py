"""An expert carried over to a backbone that is installed beside its own, packed and composed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import package_in
from redhost_port.porting import PortReport
from safetensors.torch import load_file, save_file

TINY = Path("plugins/red-backbone-tiny/src/red_backbone_tiny").resolve()


@pytest.fixture
def successor(environment, tmp_path: Path) -> str:
    """Install a next version of the tiny backbone: every matrix moved a little."""
    import torch

    model, generator = tmp_path / "model", torch.Generator().manual_seed(0)
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((TINY / name).read_bytes())
    weights = load_file(TINY / "model.safetensors")
    for name, w in weights.items():
        if w.dim() > 1:
            weights[name] = w + 0.1 * w.std() * torch.randn(w.shape, generator=generator)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    project = tmp_path / "red-backbone-successor"
    new_backbone(project, BackbonePlan(id="successor", source=f"hf:{model}"))
    environment.install(project)
    return "successor"


def write_sums(path: Path) -> str:
    """Write sums, each with how large it is."""
    rows = (
        {
            "text": f"What is {a} plus {b}?",
            "label": ["low", "middle", "high"][(a + b > 40) + (a + b > 60)],
        }
        for a in range(1, 51, 2)
        for b in range(1, 51, 2)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("question", [(), ("--question", "volume")], ids=["own", "named"])
def test_an_expert_is_ported_checked_and_composed(
    successor, environment, call, tmp_path, question
) -> None:
    data = write_sums(tmp_path / "sums.jsonl")
    assert call("new-expert", "size", "--backbone", "tiny", "--card", "texts", *question)[0] == 0
    trained = call("train-expert", "red-expert-size", "--data", data, "--epochs", "30")
    assert trained[0] == 0, trained
    code, out, err = call("port", "red-expert-size", "--to", successor, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert msgspec.to_builtins(msgspec.convert(report, PortReport)) == {
        **report,
        "interval": tuple(report["interval"]),
    }
    assert report["share"] >= 0.95 and (report["old"], report["new"]) == ("tiny", "successor")
    project = "red-expert-size-successor"
    manifest = json.loads((package_in(Path(project)) / "expert.json").read_text())
    assert manifest["schema"] == "redhost.expert/1"
    assert manifest.get("question") == (question[1] if question else None)
    assert manifest["ported"]["digest"] == report["ported_from"]
    [checked] = json.loads(call("check", "--json", project)[1])
    assert checked["ok"], checked
    environment.install(Path(project))
    receipt = json.loads(call("recompose", "--backbone", "successor", "--json", *question)[1])
    assert receipt["ported"] == {"size": report["ported_from"]}
    assert receipt["accuracy"]["after"]["size"] > 0.8
    assert call("port", "red-expert-size", "--to", successor)[0] == 2  # it is there already
    code, _, err = call("port", project, "--to", "tiny", "--out", "back")
    assert code == 2 and "a port" in err


def test_a_backbone_it_does_not_survive_on_writes_nothing(environment, call, tmp_path) -> None:
    from redhost_author.testing import backbone_project

    environment.install(backbone_project(tmp_path / "red-backbone-tiny-random"))
    data = write_sums(tmp_path / "sums.jsonl")
    assert call("new-expert", "size", "--backbone", "tiny", "--card", "texts")[0] == 0
    assert call("train-expert", "red-expert-size", "--data", data, "--epochs", "30")[0] == 0
    code, _, err = call("port", "red-expert-size", "--to", "tiny-random", "--bound", "0.99")
    assert code == 1 and "gate rows" in err
    assert not Path("red-expert-size-tiny-random").exists()


def test_a_build_for_the_new_backbone_is_taken_as_it_is(
    successor, environment, call, tmp_path
) -> None:
    from redhost_author.testing import expert_project

    backbones = {"tiny": TINY.parents[1], successor: tmp_path / "red-backbone-successor"}
    builds = {
        name: expert_project(tmp_path / name / "red-expert-moved", "moved", project)
        for name, project in backbones.items()
    }
    environment.install(builds["tiny"])
    assert call("recompose", "--backbone", "tiny")[0] == 0
    # Its gate rows are vectors, so nothing could prove a port; the others write hidden states.
    code, _, err = call("migrate", "--to", successor)
    assert code == 1 and "6 of 6" in err and "moved" in err and "range5" in err
    environment.uninstall("red-expert-moved")
    environment.install(builds[successor])
    shipped = [word for n in range(1, 6) for word in ("--without", f"range{n}")]
    assert call("migrate", "--to", successor, *shipped, "--without", "moved")[0] == 2
    code, out, err = call("migrate", "--to", successor, *shipped, "--json")
    assert code == 0, err
    moved = json.loads(out)
    assert (moved["old"], moved["new"]) == ("tiny", successor)
    assert (moved["native"], moved["ported"], moved["wheels"]) == (["moved"], [], [])
    assert set(moved["receipt"]["experts"]) == {"moved"}
    code, _, err = call("migrate", "--to", successor)
    assert code == 2 and "already" in err
    assert call("rollback")[0] == 0
    assert not Path(f"ports-{successor}").exists()


def test_texts_that_cannot_be_read_are_named_by_their_line(call, tmp_path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"one\ncaf\xe9\n")
    code, _, err = call("port", "range1", "--to", "tiny", "--texts", str(texts))
    assert code == 2 and "line 2" in err and err.count("\n") == 1
    texts.write_text("\n")
    code, _, err = call("port", "range1", "--to", "tiny", "--texts", str(texts))
    assert code == 2 and "no texts" in err
