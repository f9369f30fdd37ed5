"""`redhost lab red`: protocols keep what they promise, stages resume, systems add up."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from red_lab.red import queries
from red_lab.red.base import RECIPES, Base, BaseSettings, number_waves, train_base
from red_lab.red.cut import above, below
from red_lab.red.experts import NAMES, Budget, Outputs, train_family, train_monolith
from red_lab.red.gate import GateSettings, centroid, oracle, shaken, train_supervised
from red_lab.red.judge import flipped, hits, judge, worst_case
from red_lab.red.nested import cut_to, train_nested
from red_lab.red.overview import overview, write_overview
from red_lab.red.plan import Plan, usual
from red_lab.red.queries import LABELS, Query, boundary, cells, load
from red_lab.red.report import page
from red_lab.red.run import run

import redhost
from redhost.testing import tiny_backbone

ROOT = Path(__file__).parents[2]
TEXTS = ("What is 3 plus 4?", "What is 37 plus 12?", "What is 3 plus 41?")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_backbone(tmp_path_factory.mktemp("model"))


@pytest.fixture
def backbone(model):
    return redhost.Backbone.load(f"hf:{model}", pooling="mean")


@pytest.fixture
def few(monkeypatch):
    """Hundreds of questions in place of thousands."""
    monkeypatch.setattr(queries, "SIZES", (300, 60, 60))


def test_the_seeds_protocol_asks_what_was_trained_on() -> None:
    data = load("addition", "seed", seed=0)
    assert [len(p) for p in (data.train, data.valid, data.test)] == [20_000, 2_500, 2_500]
    known = {q.text for q in data.train}
    assert sum(q.text in known for q in data.test) / 2_500 > 0.999
    assert load("addition", "seed", seed=0) == data != load("addition", "seed", seed=1)


@pytest.mark.parametrize("task", ["addition", "mixed"])
def test_held_out_questions_and_their_rearrangements_are_on_one_side(task) -> None:
    data = load(task, "held-out", seed=1)
    sides = [{q.cluster for q in p} for p in (data.train, data.valid, data.test)]
    assert all(sides) and not sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2]
    assert set(LABELS) == {q.label for q in data.train} if task == "addition" else True


def test_rearrangements_of_a_mixed_question_are_one_cluster() -> None:
    found = {q.text: q.cluster for group in cells().values() for q in group}
    assert found["What is 12 plus 8 minus 3?"] == found["What is 12 minus 3 plus 8?"]
    assert found["What is 45 minus 17?"] != found["What is 17 plus 45?"]


def test_the_cells_of_the_mixed_task_are_as_counted_and_some_are_empty() -> None:
    counts = {k: len(v) for k, v in cells().items()}
    assert [counts.get(("-", n), 0) for n in NAMES] == [741, 390, 45, 0, 0]
    assert [counts[("+", n)] for n in NAMES] == [190, 590, 900, 610, 210]


def test_stratified_draws_ask_every_range_equally_often() -> None:
    counts = Counter(q.domain for q in load("addition", "seed", seed=0, stratified=True).train)
    assert all(abs(n / 20_000 - 0.2) < 0.02 for n in counts.values())


def test_boundary_sums_lie_within_two_of_a_border() -> None:
    at = [n for n in range(2, 101) if boundary(Query("", str(n), "", ""))]
    assert at == [19, 20, 21, 22, 39, 40, 41, 42, 59, 60, 61, 62, 79, 80, 81, 82]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_above_the_cut_of_what_is_below_it_is_the_whole_trunk(model, tmp_path, pooling) -> None:
    whole = redhost.Backbone.load(f"hf:{model}", pooling=pooling)
    hidden = below(whole, TEXTS, last_blocks=2, folder=tmp_path)
    with torch.inference_mode():
        h = above(whole.trunk, last_blocks=2).eval()(*hidden.batch(hidden.rows(TEXTS)))
    torch.testing.assert_close(h, whole.encode(TEXTS), atol=1e-5, rtol=1e-4)


def test_the_trunk_is_computed_once_and_taken_up_where_it_was_left(
    backbone, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("red_lab.red.cut.CHUNK", 1)
    once = below(backbone, TEXTS, last_blocks=1, folder=tmp_path / "a")

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        below(backbone, TEXTS, last_blocks=1, folder=tmp_path / "b", progress=stop)
    seen: list[int] = []
    again = below(
        backbone, TEXTS, last_blocks=1, folder=tmp_path / "b", progress=lambda a, _: seen.append(a)
    )
    assert seen == [3] and (again.hidden == once.hidden).all()
    monkeypatch.setattr(backbone.trunk, "hidden", None)  # a block that is touched now would raise
    last = below(backbone, TEXTS, last_blocks=1, folder=tmp_path / "b")
    assert (last.hidden == once.hidden).all()


def make_base(backbone, tmp_path, *, progress=None, name="base", **settings):
    data = load("addition", "seed", seed=0)
    hidden = below(backbone, data.texts(), last_blocks=1, folder=tmp_path / "below")
    made = BaseSettings(**{"last_blocks": 1, "epochs": 2, "learning_rate": 1e-3, **settings})
    checkpoint = tmp_path / f"{name}.safetensors"
    return data, train_base(
        backbone, hidden, data.train, settings=made, checkpoint=checkpoint, progress=progress
    )


def test_an_interrupted_base_stage_goes_on_to_the_same_bits(backbone, tmp_path, few) -> None:
    _, once = make_base(backbone, tmp_path)

    def stop(done: int, total: int) -> None:
        if done == total // 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_base(backbone, tmp_path, progress=stop, name="other")
    _, again = make_base(backbone, tmp_path, name="other")
    assert torch.equal(once.h, again.h) and torch.equal(once.classifier, again.classifier)


def test_the_base_sees_its_share_of_the_clusters() -> None:
    train = load("addition", "seed", seed=0).train
    some = [q for q in train if BaseSettings(share=0.3).sees(q)]
    assert 0.2 < len(some) / len(train) < 0.4
    seen = {q.cluster for q in some}
    assert all((q in some) == (q.cluster in seen) for q in train[:500])


def test_every_system_is_a_function_of_what_experts_say_and_alpha() -> None:
    generator = torch.Generator().manual_seed(0)
    said = Outputs(
        base=torch.randn(7, 99, generator=generator), add=torch.randn(7, 5, 99, generator=generator)
    )
    for k in range(5):
        one = torch.nn.functional.one_hot(torch.full((7,), k), 5).float()
        torch.testing.assert_close(said.residual(one), said.each()[:, k])
        torch.testing.assert_close(said.mixture(one), said.each()[:, k])
    nothing = torch.zeros(7, 5)
    assert torch.equal(said.residual(nothing), torch.softmax(said.base, -1))


def rows(count: int) -> list[Query]:
    return [Query(f"q {n}", LABELS[n % 99], NAMES[n % 5], f"c {n}") for n in range(count)]


def test_the_worst_case_is_exact() -> None:
    """No mass an adversary moves makes a surviving row wrong, and some vertex breaks the rest."""
    generator = torch.Generator().manual_seed(1)
    asked, share = rows(40), 0.4
    said = Outputs(base=torch.zeros(40, 99), add=6 * torch.rand(40, 5, 99, generator=generator))
    target = torch.tensor([LABELS.index(q.label) for q in asked])
    said.add[torch.arange(40), :, target] += 3.5
    alpha = torch.softmax(torch.randn(40, 5, generator=generator), -1)
    found = worst_case(said, alpha, share, asked, residual=True)
    lowest = torch.ones(40, dtype=torch.float64)
    for _ in range(300):
        beta = torch.distributions.Dirichlet(torch.full((5,), 0.2)).sample((40,))
        lowest *= hits(said.residual((1 - share) * alpha + share * beta), asked)
    assert 0 < found <= float(lowest.mean()) < 1
    assert worst_case(said, alpha, 0.0, asked, residual=True) == float(
        hits(said.residual(alpha), asked).mean()
    )


def test_flipped_routes_are_flipped_as_often_as_asked() -> None:
    alpha = torch.nn.functional.one_hot(torch.zeros(4000, dtype=torch.int64), 5).float()
    assert torch.equal(flipped(alpha, 0.0, seed=0), alpha)
    moved = float((flipped(alpha, 0.5, seed=0)[:, 0] == 0).float().mean())
    assert moved == pytest.approx(0.5 * 0.8, abs=0.03)


def test_judge_counts_ranges_swaps_and_present_classes_only() -> None:
    asked = [
        Query("a b", "7", "range1", "x"),
        Query("b a", "7", "range1", "x"),
        Query("c d", "30", "range2", "y"),
    ]
    p = torch.zeros(3, 99)
    for row, answer in enumerate(("7", "8", "30")):
        p[row, LABELS.index(answer)] = 1
    told = judge(p, asked)
    assert told["overall"] == pytest.approx(2 / 3)
    assert told["domains"]["range1"] == 0.5 and told["domains"]["range5"] is None
    assert told["macro"] == 0.75 and told["worst"] == 0.5
    assert told["swap_consistency"] == 0.0
    assert told["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)


def made_up(count: int, width: int) -> Base:
    """Features of `rows(count)` out of thin air, with a classifier that knows nothing."""
    generator = torch.Generator().manual_seed(0)
    return Base(
        h=torch.randn(count, width, generator=generator),
        classifier=0.2 * torch.randn(99, width, generator=generator),
        place={f"q {n}": n for n in range(count)},
    )


def test_residual_experts_learn_their_range_and_the_monolith_is_as_large() -> None:
    base, train = made_up(200, 64), rows(200)
    budget = Budget(epochs=60, learning_rate=1e-2)
    family = train_family(base, train, form="residual", budget=budget, seed=0)
    whole = train_monolith(base, train, budget=budget, seed=0)
    assert whole.parameters == family.parameters
    said = family.outputs(base.h, base.classifier)
    assert hits(torch.softmax(said.base, -1), train).mean() < 0.1
    assert hits(said.residual(oracle(train)), train).mean() > 0.9
    assert hits(said.residual(torch.full((200, 5), 0.2)), train).mean() < 0.9


def test_the_penalty_keeps_experts_quiet_on_the_others_questions() -> None:
    base, train = made_up(200, 64), rows(200)
    sizes = []
    for off_domain in (0.0, 0.1):
        budget = Budget(epochs=40, learning_rate=1e-2, off_domain=off_domain)
        family = train_family(base, train, form="residual", budget=budget, seed=0)
        said = family.outputs(base.h, base.classifier)
        others = 1 - oracle(train)
        sizes.append(float((said.add.norm(dim=-1) * others).sum() / others.sum()))
    assert sizes[1] < 0.5 * sizes[0]


def test_mlp_heads_have_as_many_parameters_as_residual_experts() -> None:
    """At the width of SmolLM2, by building them: within a percent."""
    base = made_up(99, 576)
    sizes = [
        train_family(base, rows(99), form=form, budget=Budget(epochs=1), seed=0).parameters
        for form in ("mlp", "residual")
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_the_router_learns_what_centroids_cannot() -> None:
    base, train = made_up(200, 64), rows(200)
    gate = train_supervised(base, train, settings=GateSettings(epochs=40, learning_rate=1e-2))
    wanted = oracle(train).argmax(-1)
    learnt = (gate.weights(base.h).argmax(-1) == wanted).float().mean()
    nearest = (centroid(base, train, base.h).argmax(-1) == wanted).float().mean()
    assert learnt > 0.95 > nearest


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
    told = []
    for name in ("one", "two"):
        path = run(plan, out=tmp_path / name, work=tmp_path / "work" / name)
        metrics = json.loads(path.read_text("utf-8"))
        assert (path.parent / "README.md").read_text("utf-8") == page(metrics)
        told.append({k: v for k, v in metrics.items() if k not in {"seconds", "peak_memory_mb"}})
    assert told[0] == told[1]
    figures = [
        (tmp_path / n / plan.name / f"{figure}.svg").read_bytes()
        for figure in ("ranges", "noise", "routing", "ranks", "shares")
        for n in ("one", "two")
    ]
    assert figures[0::2] == figures[1::2]
    assert told[0]["ablations"]["rank"].keys() == {f"D/{d}" for d in (2, 4, 8, 16, 32)}
    assert told[0]["shares"].keys() == {"10%", "20%", "30%", "50%", "70%", "100%"}
    named = {"global", "monolith", "best_single", "oracle", "uniform", "moe_linear"}
    named |= {"moe_residual", "hard", "centroid", "red", "red_joint"}
    assert named <= told[0]["systems"].keys()
    assert told[0]["systems"]["red"]["accuracy"].keys() == {"mean", "low", "high", "seeds"}


def test_plans_that_differ_write_to_folders_that_differ() -> None:
    plan = Plan(task="addition", protocol="seed", backbone="tiny", seeds=1)
    other = dataclasses.replace(plan, base=BaseSettings(share=0.3))
    assert plan.name == "tiny-addition-seed" and other.name == "tiny-addition-seed-share30"
    waves = dataclasses.replace(plan, recipe="fourier", base=RECIPES["fourier"])
    fast = dataclasses.replace(waves, base=dataclasses.replace(waves.base, precision="bfloat16"))
    assert waves.name == "tiny-addition-seed-fourier"
    assert fast.name == "tiny-addition-seed-fourier-bf16"


def test_a_head_of_waves_answers_numbers_it_never_saw_and_a_free_one_does_not() -> None:
    """From features that turn with the number: two answers of three are seen, the third asked."""
    n = torch.arange(2, 101).float()
    turns = [2 * torch.pi * n / period for period in (10, 100)]
    h = torch.stack([wave(t) for t in turns for wave in (torch.cos, torch.sin)], dim=1)
    seen = n % 3 != 0
    target = torch.arange(99)
    right = {}
    for name, waves in (("waves", number_waves(LABELS)), ("free", torch.eye(99))):
        head = torch.zeros(waves.shape[1], 4, requires_grad=True)
        optimizer = torch.optim.AdamW([head], lr=0.1)
        for _ in range(300):
            loss = torch.nn.functional.cross_entropy(h[seen] @ (waves @ head).T, target[seen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        said = (h @ (waves @ head).T).argmax(-1)
        right[name] = float((said == target)[~seen].float().mean())
    assert right["waves"] > 0.95 and right["free"] < 0.05


def test_a_base_in_bfloat16_is_near_the_one_in_float32(backbone, tmp_path, few) -> None:
    data, exact = make_base(backbone, tmp_path, head="fourier", schedule="cosine")
    _, fast = make_base(
        backbone, tmp_path, name="fast", head="fourier", schedule="cosine", precision="bfloat16"
    )
    rows = exact.rows(data.test)
    similar = torch.nn.functional.cosine_similarity(exact.h[rows], fast.h[rows], dim=-1)
    assert not torch.equal(exact.h, fast.h) and similar.min() > 0.9


def test_nested_experts_cut_to_their_full_rank_are_themselves_and_beat_plain_cuts() -> None:
    base, train = made_up(200, 64), rows(200)
    budget = Budget(epochs=60, learning_rate=1e-2, rank=32)
    nested = train_nested(base, train, ranks=(4, 32), budget=budget, seed=0)
    plain = train_family(base, train, form="residual", budget=budget, seed=0)

    def right(family) -> float:
        said = family.outputs(base.h, base.classifier)
        return float(hits(said.residual(oracle(train)), train).mean())

    whole = cut_to(nested, 32).outputs(base.h, base.classifier)
    assert torch.equal(whole.add, nested.outputs(base.h, base.classifier).add)
    assert right(nested) > 0.9
    assert right(cut_to(nested, 4)) > right(cut_to(plain, 4)) + 0.05


def test_noise_of_the_router_grows_with_activity() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.tensor([0.0, 1.0, -4.0]).expand(20_000, 3)
    spread = (shaken(z, 0.5, generator) - z).std(0)
    assert spread[0] == 0
    torch.testing.assert_close(spread[1:] ** 2, torch.tensor([0.5, 2.0]), rtol=0.05, atol=0)
    assert torch.equal(shaken(z, 0.0, generator), z)


def test_the_overview_is_written_from_the_runs_beside_it(tmp_path) -> None:
    folder = ROOT / "docs" / "results" / "red"
    told = overview(folder)
    assert json.loads((folder / "overview.json").read_text("utf-8")) == told
    for one in told["runs"]:
        (tmp_path / one["name"]).mkdir()
        copied = (folder / one["name"] / "metrics.json").read_bytes()
        (tmp_path / one["name"] / "metrics.json").write_bytes(copied)
    write_overview(tmp_path)
    assert (tmp_path / "README.md").read_text("utf-8") == (folder / "README.md").read_text("utf-8")


def test_every_results_page_is_written_from_its_metrics() -> None:
    folders = [p.parent for p in (ROOT / "docs" / "results" / "red").glob("*/metrics.json")]
    assert folders
    for folder in folders:
        metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
        assert (folder / "README.md").read_text("utf-8") == page(metrics), folder.name


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
