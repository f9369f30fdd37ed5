"""migrate: a composition moves to another backbone in a real environment, or nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file

import redhost
from redhost.authoring import (
    ExpertSettings,
    new_backbone,
    open_for_training,
    split_rows,
    train_package,
    write_project,
)
from redhost.core.composition.migrate import Migrated
from redhost.registry.package.project import ExpertPlan, write_plan
from redhost.registry.wheel.wheel import build_wheel
from redhost.testing import Environment

TINY = Path("plugins/red-backbone-tiny/src/red_backbone_tiny").resolve()
QUESTION = "What is 41 plus 2?"
SHIPPED = [word for n in range(1, 6) for word in ("--without", f"range{n}")]


def sums() -> Iterator[tuple[int, int]]:
    yield from ((a, b) for a in range(1, 51, 2) for b in range(1, 51, 2))


def rows(name: str) -> list[redhost.Row]:
    """Return sums, each with how large it is; or differences, each with where it begins."""
    if name == "size":
        labels = {(a, b): "small" if a + b <= 50 else "large" for a, b in sums()}
        return [redhost.Row(text=f"What is {a} plus {b}?", label=y) for (a, b), y in labels.items()]
    return [
        redhost.Row(text=f"What is {a} minus {b}?", label="low" if a <= 25 else "high")
        for a, b in sums()
    ]


def wheel(name: str, folder: Path, *, cards: str) -> str:
    """Train an expert on the tiny backbone and build its wheel."""
    project, plan = folder / name, ExpertPlan(id=name, backbone="tiny", form="linear", card=cards)
    write_project(project, kind="expert", package_id=name, summary=name)
    write_plan(project, plan)
    context = open_for_training(TINY, cache=folder / "cache")
    settings = ExpertSettings(space="labels", epochs=30)
    train_package(project, plan, split_rows(rows(name)), context=context, settings=settings)
    return str(build_wheel(project, folder))


def successor(name: str, folder: Path, *, seed: int) -> Path:
    """Write a next version of the tiny backbone: every matrix moved a little."""
    model, generator = folder / f"model-{name}", torch.Generator().manual_seed(seed)
    model.mkdir()
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / file).write_bytes((TINY / file).read_bytes())
    weights = load_file(TINY / "model.safetensors")
    for tensor, w in weights.items():
        if w.dim() > 1:
            weights[tensor] = w + 0.05 * w.std() * torch.randn(w.shape, generator=generator)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    project = folder / f"red-backbone-{name}"
    new_backbone(project, name, f"hf:{model}")
    return project


def written(path: Path) -> str:
    """Write rows that nobody trained on, of where differences begin."""
    numbers = [(a, b) for a in range(2, 51, 2) for b in range(2, 51, 2)]
    rows = [
        {"text": f"What is {a} minus {b}?", "label": "low" if a <= 25 else "high"}
        for a, b in numbers
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_composition_moves_whole_or_not_at_all(make_venv: Any, tmp_path: Path) -> None:
    venv, home = make_venv(tmp_path / "venv"), tmp_path / "home"
    size = wheel("size", tmp_path, cards="texts")
    start = wheel("start", tmp_path, cards="vectors")  # nothing in its card can be read anew
    for seed, name in enumerate(("successor", "second")):
        Environment(venv.site).install(successor(name, tmp_path, seed=seed))
    labelled = written(tmp_path / "rows.jsonl")
    to, out = ("migrate", "--to", "successor", "--json"), str(tmp_path / "ports")
    given = ("--rows", labelled, "--tolerance", "5", "--out", out, "--json")
    first, second, refused, unknown, moved, answers, listed, status, again, *back = venv.session(
        ("add", size, "--backbone", "tiny", "--accept"),
        ("add", start, "--accept", "--json"),
        (*to, *SHIPPED),
        (*to, *SHIPPED, "--without", "sise"),
        (*to, *SHIPPED, *given),
        ("predict", QUESTION, "--json"),
        ("list-experts", "--json"),
        ("status", "--json"),
        ("migrate", "--to", "second", *given),
        ("rollback", "2", "--json"),
        ("predict", QUESTION, "--json"),
        home=home,
    )
    assert (first[0], second[0]) == (0, 0), (first, second)
    # One that cannot be carried over keeps all where they are, and is named.
    assert refused[0] == 1 and "start" in refused[2] and "--rows" in refused[2]
    assert unknown[0] == 2
    assert moved[0] == 0, moved[2]
    report = json.loads(moved[1])
    assert msgspec.to_builtins(msgspec.convert(report, Migrated)).keys() == report.keys()
    assert (report["old"], report["new"]) == ("tiny", "successor")
    assert {r["id"] for r in report["ported"]} == {"size", "start"}
    assert all(r["share"] >= 0.95 for r in report["ported"])
    assert report["receipt"]["parent"] == json.loads(second[1])["receipt"]["generation"]
    assert report["receipt"]["ported"].keys() == {"size", "start"}
    assert {*map(Path, report["wheels"])} < {*(tmp_path / "ports").iterdir()}
    states = {x["id"]: x for x in json.loads(listed[1])}
    assert states["size"]["state"] == "attached" and "+" in states["size"]["version"]
    assert json.loads(status[1])["drift"] == []
    # The next one is ported to from what their authors built: maps are not put on maps.
    assert again[0] == 0, again[2]
    receipts = [json.loads(x[1])["receipt"] for x in (moved, again)]
    assert receipts[0]["ported"] == receipts[1]["ported"]
    # The generation before needs nothing that is installed.
    assert set(json.loads(back[0][1])["experts"]) == {"size", "start", *SHIPPED[1::2]}
    assert json.loads(answers[1])[0]["label"] == "small"
    assert "range1" in json.loads(back[1][1])[0]["weights"]
