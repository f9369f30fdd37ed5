"""What a bus costs: counts that can be worked out by hand; runs that stand side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from red_lab.cli import cost
from red_lab.cost import ROUTERS, Load, build_bus, make_trunk, measure, parameters, run

import redhost

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "cost"
TINY = Load(config="tiny", queries=4, batch=3, rounds=1)


@pytest.fixture(scope="module")
def measured() -> dict:
    return measure(TINY)


@pytest.mark.parametrize(
    ("config", "count", "width", "share"),
    [("qwen3-0.6b", 596_049_920, 1024, 0.0044), ("smollm2-135m", 134_515_008, 576, 0.00617)],
)
def test_full_size_backbones_and_the_seeds_share_of_experts(config, count, width, share) -> None:
    """Shapes alone, no memory: five experts of rank D/4 hold 2·5·D·D/4 numbers."""
    with torch.device("meta"):
        trunk = make_trunk(config)
    assert parameters(trunk) == count and trunk.config.hidden_size == width
    assert 5 * 2 * width * (width // 4) / count == pytest.approx(share, abs=5e-5)


def test_parameters_of_the_bus_are_those_of_its_parts(measured) -> None:
    width, columns = 128, 6
    p = measured["parameters"]
    assert p["experts"] == 5 * 2 * width * (width // 4)
    assert p["classifier"] == 99 * width
    assert p["routers"]["linear"] == columns * (width + 1)
    assert p["routers"]["evidence"] > (columns + 1) * width**2
    assert p["trunk"] == parameters(make_trunk("tiny"))


@pytest.mark.parametrize("kind", ROUTERS)
def test_every_bus_answers_and_routes_by_its_input(kind: str) -> None:
    bus = build_bus(kind, TINY, width=32)
    p, alpha = bus(10 * torch.randn(7, 32, generator=torch.Generator().manual_seed(0)))
    assert p.shape == (7, 99) and alpha.shape == (7, 6)
    assert torch.allclose(p.sum(-1), torch.ones(7), atol=1e-5)
    if kind not in {"linear", "mlp"}:  # these start even, until they are trained
        assert float(alpha.std(0).max()) > 0


def test_rank_and_number_of_experts_can_be_chosen() -> None:
    bus = build_bus("linear", Load(config="tiny", experts=3, rank=2), width=32)
    assert parameters(bus.experts) == 3 * 2 * 32 * 2 and len(bus.columns) == 4


def test_seconds_are_of_the_same_rows_and_ratios_within_a_round(measured) -> None:
    names = set(measured["seconds_per_1000"])
    assert {"trunk", *(f"bus {kind}" for kind in ROUTERS)} <= names
    assert names == set(measured["times_trunk"]) and measured["times_trunk"]["trunk"] == 1
    seconds = measured["seconds_per_1000"]
    for name, ratio in measured["times_trunk"].items():  # one round, so the median is the ratio
        assert ratio == pytest.approx(seconds[name] / seconds["trunk"])


def test_memory_never_falls_along_the_way(measured) -> None:
    peaks = [measured["peak_bytes"][k] for k in ("start", "weights", "trunk", "all")]
    assert peaks == sorted(peaks) and peaks[0] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(redhost.UsageError, match="expected cpu, found cuda"):
        measure(Load(config="tiny", device="cuda"))


def test_runs_stand_beside_each_other_and_are_replaced_by_their_like(tmp_path, measured) -> None:
    other = {**measured, "config": "smollm2-135m"}
    for one in (measured, other, {**measured, "rounds": 9}):
        path = run(one, out=tmp_path)
    runs = json.loads(path.read_text("utf-8"))["runs"]
    assert set(runs) == {"tiny cpu", "smollm2-135m cpu"} and runs["tiny cpu"]["rounds"] == 9
    page = (tmp_path / "README.md").read_text("utf-8")
    assert "40,960 = 6.12%" in page and "the median of 9 rounds" in page


def test_the_command_takes_only_shapes_it_knows(tmp_path) -> None:
    done = CliRunner().invoke(cost, ["--config", "gpt9", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "qwen3-0.6b" in done.output


def test_the_committed_runs_are_of_every_size() -> None:
    metrics = json.loads((RESULTS / "metrics.json").read_text("utf-8"))
    assert {r["config"] for r in metrics["runs"].values()} == {"qwen3-0.6b", "smollm2-135m", "tiny"}
