"""`redhost lab red` as a command: the same twice, pages written from metrics."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path

from red_lab.red import queries
from red_lab.red.base import RECIPES, BaseSettings
from red_lab.red.experts import Budget
from red_lab.red.gate import GateSettings
from red_lab.red.measure import Plan, usual
from red_lab.red.report import overview, page, write_overview
from red_lab.red.run import Seed, run

ROOT = Path(__file__).parents[3]


def test_the_same_command_twice_gives_the_same_metrics_but_for_times(model, tmp_path, few) -> None:
    plan = Plan(
        task="addition",
        protocol="seed",
        backbone=f"hf:{model}",
        seeds=1,
        base=BaseSettings(last_blocks=1, epochs=1),
        budget=Budget(epochs=2),
        gate=GateSettings(epochs=2),
        ablations=True,
        shares=True,
    )
    written = []
    for name in ("one", "two"):
        path = run(plan, out=tmp_path / name, work=tmp_path / "work" / name)
        metrics = json.loads(path.read_text("utf-8"))
        assert (path.parent / "README.md").read_text("utf-8") == page(metrics)
        written.append({k: v for k, v in metrics.items() if k not in {"seconds", "peak_memory_mb"}})
    assert written[0] == written[1]
    figures = [
        (tmp_path / n / plan.name / f"{figure}.svg").read_bytes()
        for figure in ("ranges", "noise", "routing", "ranks", "shares")
        for n in ("one", "two")
    ]
    assert figures[0::2] == figures[1::2]
    assert written[0]["ablations"]["rank"].keys() == {f"D/{d}" for d in (2, 4, 8, 16, 32)}
    assert written[0]["shares"].keys() == {"10%", "20%", "30%", "50%", "70%", "100%"}
    named = {"global", "monolith", "best_single", "oracle", "uniform", "moe_linear"}
    named |= {"moe_residual", "hard", "centroid", "red", "red_joint"}
    assert named <= written[0]["systems"].keys()
    assert written[0]["systems"]["red"]["accuracy"].keys() == {"mean", "low", "high", "seeds"}
    for system in written[0]["systems"].values():
        rows = written[0]["rows"]
        assert system["errors"]["wrong"] == round(rows * (1 - system["accuracy"]["mean"]))
    assert written[0]["paired_boundary"].keys() == {"RED - MoE, residual", "RED - oracle, residual"}
    assert all(-1 <= c <= 1 for c in written[0]["cosine"].values() if c is not None)


def test_what_was_made_from_other_questions_is_not_taken_up(tmp_path, few, monkeypatch) -> None:
    plan = Plan(task="addition", protocol="held-out", backbone="tiny", seeds=1)
    before, again = (Seed(plan, 0, tmp_path).file(plan, ".json") for _ in range(2))
    monkeypatch.setattr(queries, "SIZES", (299, 60, 60))
    assert before == again != Seed(plan, 0, tmp_path).file(plan, ".json")


def test_plans_that_differ_write_to_folders_that_differ() -> None:
    plan = Plan(task="addition", protocol="seed", backbone="tiny", seeds=1)
    other = dataclasses.replace(plan, base=BaseSettings(share=0.3))
    assert plan.name == "tiny-addition-seed" and other.name == "tiny-addition-seed-share30"
    waves = dataclasses.replace(plan, recipe="fourier", base=RECIPES["fourier"])
    fast = dataclasses.replace(waves, base=dataclasses.replace(waves.base, precision="bfloat16"))
    assert waves.name == "tiny-addition-seed-fourier"
    assert fast.name == "tiny-addition-seed-fourier-bf16"


def test_the_overview_is_written_from_the_runs_beside_it(tmp_path) -> None:
    folder = ROOT / "docs" / "results" / "red"
    found = overview(folder)
    assert json.loads((folder / "overview.json").read_text("utf-8")) == found
    for one in found["runs"]:
        (tmp_path / one["name"]).mkdir()
        copied = (folder / one["name"] / "metrics.json").read_bytes()
        (tmp_path / one["name"] / "metrics.json").write_bytes(copied)
    write_overview(tmp_path)
    assert (tmp_path / "README.md").read_text("utf-8") == (folder / "README.md").read_text("utf-8")


def test_what_the_index_says_of_mixed_expressions_is_what_was_measured() -> None:
    folder = ROOT / "docs" / "results" / "red"
    longer, usual_run = (
        json.loads((folder / name / "metrics.json").read_text("utf-8"))
        for name in ("smollm2-mixed-seed-fourier-long", "smollm2-addition-seed")
    )
    index = " ".join((ROOT / "docs" / "results" / "README.md").read_text("utf-8").split())
    assert "most of what is answered on mixed expressions comes from the base" in index
    for metrics in (longer, usual_run):
        accuracy = {name: s["accuracy"] for name, s in metrics["systems"].items()}
        assert metrics["plan"]["seeds"] == 3
        assert accuracy["red"]["low"] > accuracy["moe_linear"]["high"]
        paired = metrics["paired"]["RED - MoE, residual"]
        assert paired["low"] <= 0 <= paired["high"]
    systems = longer["systems"]
    assert systems["global"]["accuracy"]["mean"] > systems["red"]["accuracy"]["mean"] / 2


FROM_ANOTHER_TASK = re.compile(
    r"\.(9725|7583)\b|published (for|figure|table)|(what|than) was published"
)


def test_figures_of_the_authors_other_experiment_stand_beside_none_of_ours() -> None:
    pages = (ROOT / "README.md", *(ROOT / "docs" / "results" / "red").rglob("README.md"))
    pages += (ROOT / "docs" / "results" / "seeds.md", ROOT / "docs" / "results" / "README.md")
    for path in pages:
        assert not FROM_ANOTHER_TASK.search(path.read_text("utf-8")), path
    departures = (ROOT / "docs" / "departures.md").read_text("utf-8")
    before, _, after = departures.partition("## Figures of the author's repository")
    section, _, rest = after.partition("\n## ")
    assert "github.com/dancwolf-cmyk/red" in section and "80,000 samples" in section
    assert FROM_ANOTHER_TASK.search(section)
    assert not FROM_ANOTHER_TASK.search(before + rest)


def test_every_pair_of_task_and_protocol_has_a_usual_base_that_its_folder_does_not_name() -> None:
    for backbone, task, protocol in itertools.product(
        ("tiny", "smollm2"), ("addition", "mixed"), ("seed", "held-out")
    ):
        recipe, precision = usual(backbone, task, protocol)
        plan = Plan(
            task=task,
            protocol=protocol,
            backbone=backbone,
            seeds=1,
            recipe=recipe,
            base=dataclasses.replace(RECIPES[recipe], precision=precision),
        )
        assert plan.name == f"{backbone}-{task}-{protocol}"


def test_a_base_that_is_not_the_usual_one_is_named() -> None:
    base = RECIPES["fourier"]
    plan = Plan(
        task="mixed", protocol="held-out", backbone="smollm2", seeds=1, recipe="fourier", base=base
    )
    assert plan.name == "smollm2-mixed-held-out-fp32"
    free = dataclasses.replace(plan, recipe="seed", base=RECIPES["seed"])
    assert free.name == "smollm2-mixed-held-out-seed-fp32"
