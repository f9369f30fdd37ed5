"""The toy experiments: what mixes, what does not, and pages whose numbers come from files."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from red_lab.cli import toy
from red_lab.toy import Effort, bus, linear, nonlinear, page, propositions, residual, run
from red_lab.toy.data import PLACES, UNITS, grid, oracle, score
from red_lab.toy.mlp import LAYERS, MLPRecipe, average, fit, forward, start
from red_lab.training import one_thread

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "toy"
SHORT = MLPRecipe(steps=1000)
TINY = Effort(
    recipe=MLPRecipe(steps=8),
    residual=MLPRecipe(steps=8),
    descent=linear.Descent(steps=8),
    epochs=1,
    router_steps=4,
)
EVEN = torch.full((10000, 5), 0.2)


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def networks():
    with one_thread():
        return nonlinear.train(0, recipe=dataclasses.replace(SHORT, steps=2000))


@pytest.fixture(scope="module")
def residuals():
    with one_thread():
        return residual.train(0, recipe=SHORT)


@pytest.fixture(scope="module")
def committed() -> dict:
    return json.loads((RESULTS / "metrics.json").read_text("utf-8"))


def on_segments(answers: torch.Tensor, measure: str) -> list[float]:
    return list(score(answers)[measure].values())[:-1]


def test_the_grid_is_the_seeds() -> None:
    points = grid()
    assert points.home.shape == (5, 400) and int((~points.inside).sum()) == 8000
    for (low, high), home in zip(((1, 20), (81, 100)), points.home[[0, 4]], strict=True):
        operands = (100 * points.x[home]).round()
        assert (operands.min(), operands.max()) == (low, high)
    assert torch.equal(points.owner[points.home[3]], torch.full((400,), 3))
    assert torch.allclose(200 * points.y, points.sums)


def test_an_answer_is_right_when_it_rounds_to_the_sum() -> None:
    sums = grid().sums
    close, far = score((sums + 0.49) / 200), score((sums - 0.51) / 200)
    assert set(close["accuracy"].values()) == {1.0} and set(far["accuracy"].values()) == {0.0}
    assert far["mae"]["off"] == pytest.approx(0.51) and far["max"]["1-20"] == pytest.approx(0.51)


def test_linear_experts_agree_and_their_averages_are_exact() -> None:
    found = linear.measure(linear.train(0, descent=linear.Descent(steps=2000)), alpha=EVEN)
    for name in ("oracle", "uniform", "parameters"):
        assert max(score(found["A exact"][name])["max"].values()) < 1e-9
    sgd = found["A sgd"]
    assert torch.allclose(sgd["uniform"], sgd["parameters"], atol=1e-12)
    assert max(on_segments(sgd["oracle"], "max")) > 1


def test_the_last_segment_is_the_worst_conditioned() -> None:
    assert linear.conditions() == pytest.approx([314, 423, 687, 1198, 2096], rel=2e-3)


def test_networks_are_right_at_home_and_their_averages_are_not(networks) -> None:
    found = nonlinear.measure({"B": networks["B"]}, alpha=EVEN)["B"]
    assert max(on_segments(found["oracle"], "mae")) < 1
    for name in ("uniform", "parameters"):
        assert sum(e > 3 for e in on_segments(found[name], "mae")) >= 4
        assert sum(on_segments(found[name], "accuracy")) < 0.5


def test_outputs_average_where_every_network_saw_every_segment(networks) -> None:
    chosen = {n: networks[n] for n in ("B all", "B all, trained start")}
    found = nonlinear.measure(chosen, alpha=EVEN)
    assert max(on_segments(found["B all"]["uniform"], "mae")) < 1
    assert max(on_segments(found["B all"]["parameters"], "mae")) > 10
    assert max(on_segments(found["B all, trained start"]["parameters"], "mae")) < 1


def test_networks_trained_side_by_side_do_not_touch_each_other() -> None:
    def one(pool):
        generator = torch.Generator().manual_seed(0)
        return fit(
            start(2, generator=generator),
            pool=pool,
            target=grid().y.expand(2, -1),
            head=lambda f: f,
            recipe=MLPRecipe(steps=5),
            generator=generator,
        )

    home = grid().home
    first, second = one(home[[0, 1]]), one(home[[0, 4]])
    same = [torch.equal(p[0], q[0]) for p, q in zip(first, second, strict=True)]
    assert all(same) and not torch.equal(first[0][1], second[0][1])


def test_parameters_average_one_by_one() -> None:
    stack = start(5, generator=torch.Generator().manual_seed(0), shared=True)
    assert [p.shape[1:] for p in stack[::2]] == [torch.Size(layer) for layer in LAYERS]
    answers = forward(stack, grid().inputs)
    assert torch.allclose(forward(average(stack), grid().inputs)[0], answers[0], atol=1e-6)


def test_residual_experts_mix_on_a_right_base_only(residuals) -> None:
    exact, rough = (residuals[f"scaled, {n}"].use(alpha=EVEN) for n in ("exact", "rough"))
    assert min(on_segments(exact["uniform"], "accuracy")) == 1.0
    assert max(on_segments(rough["oracle"], "mae")) < 1
    assert sum(e > 1 for e in on_segments(rough["uniform"], "mae")) >= 3
    alone = [score(residual.base(n))["accuracy"] for n in ("exact", "near")]
    assert set(alone[0].values()) == {1.0}
    assert list(alone[1].values())[:-1] == pytest.approx([1, 0.21, 0, 0, 0], abs=0.02)


def test_a_host_bus_adds_trained_residuals_to_the_base() -> None:
    router = bus.learn_router(0, steps=100)
    found = bus.measure(0, "near", router=router, epochs=30)
    base = residual.base("near")
    assert torch.allclose(found["alone"], base, atol=1e-6)
    assert max(on_segments(found["oracle"], "mae")) < 0.5 < max(on_segments(base, "mae"))
    parts = (found["uniform"] - base, (found["sum"] - base) / 5)
    assert torch.allclose(*parts, atol=1e-5)
    chosen = bus.route(router).argmax(1)[grid().inside]
    assert (chosen == grid().owner[grid().inside]).double().mean() > 0.95


def test_the_norm_of_one_number_is_zero() -> None:
    assert bus.norm_of_a_scalar() == 0.0


def test_proposition_1_needs_rank_and_no_noise() -> None:
    found = propositions.first(0)
    assert found["rank"] == 3 and found["apart"] < 1e-12
    assert found["noisy apart"] > 1e-3
    assert found["line rank"] == 2 and found["line fit"] < 1e-9 and found["line error"] > 10


def test_proposition_2_is_an_identity_and_false_as_written(networks) -> None:
    found = propositions.second(networks["B"])
    assert found["identity"] < 1e-9
    assert found["others"] > 10 * found["own"]
    answers = nonlinear.outputs(propositions.represented())[0]
    assert max(score(answers)["max"].values()) < 1e-4


@pytest.mark.parametrize("name", residual.BOUNDS)
def test_proposition_3_holds_for_all_weights_tried(residuals, name: str) -> None:
    own, epsilon = residuals[f"bounded, {name}"], residual.BOUNDS[name]
    assert own.parts.abs().max() <= epsilon
    alpha = propositions.mixing_weights(1, draws=50)
    for weights, limit in zip(alpha, propositions.bound(own, alpha, epsilon=epsilon), strict=True):
        assert (own.base + weights @ own.parts - grid().y).abs().max() <= limit + 1e-12


def test_proposition_3_as_written_is_too_small(residuals) -> None:
    """Weights that sum to 1 can go past ε, up to 3 ε for (2, −1)."""
    found = propositions.third(0, residuals, draws=50)
    assert found["rough of epsilon"] > 1 and found["rough of bound"] <= 1
    assert found["opposed"] == pytest.approx(3)
    assert found["away"] > 3 * found["home"]
    assert any(set(a.tolist()) == {2.0, -1.0, 0.0} for a in propositions.mixing_weights(0, draws=0))


def test_oracle_routing_takes_each_points_own_expert() -> None:
    outputs = torch.arange(5.0)[:, None].expand(5, 10000)
    assert torch.equal(oracle(outputs)[grid().home], torch.arange(5.0)[:, None].expand(5, 400))


def test_the_same_seed_gives_the_same_bytes(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    threads = torch.get_num_threads()
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        run(seeds=1, out=folder, effort=TINY)
    names = sorted(p.name for p in folders[0].iterdir())
    drawn = ["accuracy.svg", "diagonal.svg", "mix-error.svg"]
    assert names == ["README.md", *drawn[:2], "metrics.json", drawn[2]]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert torch.get_num_threads() == threads


def test_all_three_experiments_are_drawn_along_the_diagonal() -> None:
    picture = (RESULTS / "diagonal.svg").read_text("utf-8")
    for name in ("A along a = b", "B along a = b", "C along a = b", "parameters averaged", "base"):
        assert f"<!-- {name} -->" in picture


def test_the_page_would_follow_a_changed_number(committed) -> None:
    committed = json.loads(json.dumps(committed))
    committed["systems"]["B"]["uniform"]["1-20"]["accuracy"] = 0.123
    text = page(committed)
    assert text != (RESULTS / "README.md").read_text("utf-8") and "**0.123**" in text


def test_the_committed_results_say_what_the_seed_says(committed) -> None:
    def accuracy(experiment: str, system: str) -> list[float]:
        cells = committed["systems"][experiment][system]
        return [cells[place]["accuracy"] for place in PLACES[:-1]]

    assert committed["schema"] == "red-lab.toy/1" and committed["seeds"] >= 5
    for right in (
        ("A exact", "uniform"),
        ("A exact", "parameters"),
        ("C scaled, exact", "uniform"),
    ):
        assert accuracy(*right) == [1.0] * 5
    for experiment in ("B", "C scaled, near", "C scaled, rough", "C bus, near"):
        assert min(accuracy(experiment, "oracle")) > 0.99
        assert min(accuracy(experiment, "learned")) > 0.98
    assert max(accuracy("B", "uniform") + accuracy("B", "parameters")) < 0.15
    assert min(accuracy("B all", "uniform")) > 0.98
    assert sum(accuracy("C scaled, near", "uniform")) > 4
    assert sum(accuracy("C scaled, rough", "uniform")) < 1
    assert committed["propositions"]["3"]["rough of bound"]["max"] <= 1
    assert committed["scalar_norm"] == 0 and UNITS == 200


def test_the_command_writes_where_its_option_says(tmp_path, monkeypatch) -> None:
    seen = {}
    monkeypatch.setattr("red_lab.toy.run", lambda **given: seen.update(given) or given["out"])
    done = CliRunner().invoke(toy, ["--seeds", "2", "--out", str(tmp_path)])
    assert done.exit_code == 0 and seen == {"seeds": 2, "out": tmp_path}


def test_the_command_is_described_without_torch() -> None:
    code = (
        "import sys; from red_lab.cli import toy;"
        "print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
