"""The generative study end to end on a micro backbone: stages, resumption, causality, the page."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from red_lab.generative import page, study
from red_lab.generative.context import StudyContext, StudySetting
from red_lab.generative.corpora import Sizes, read_corpora, read_general
from red_lab.generative.gates import LEAST, RARER, TrainedGates, frequencies, regret_of
from red_lab.generative.judge import GateRows, Tables, answer_log_p, residual_log_p
from red_lab.generative.sources import Find
from red_lab.generative.tiny import GenerativeShape, learn_tokenizer, make_language_model
from red_lab.generative.training import untrained
from redhost_robust import mixture_losses

import redhost
from redhost.core.bus.task import Task

SIZES = Sizes(passage=120, train=6000, valid=1500, fit=2500, gate=2500, test=3000, background=2000)
MICRO = StudySetting(
    sizes=SIZES,
    tokens={"train": 600, "valid": 200, "fit": 300, "gate": 300, "test": 300},
    background=300,
    rank=4,
    learning_rate=1e-2,
    weight_decay=0.1,
    dropout=0.1,
    batch=64,
    epochs=2,
    off_domain=1e-3,
    half=False,
    gate_steps=40,
    gate_every=20,
    lessons=10,
    card=60,
    divergence=50,
    host_steps=5,
)
SHAPE = GenerativeShape(vocabulary=300, width=16, blocks=1, heads=2, inner=16, longest=256)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def context(
    small: Find, generation: Task, tmp_path_factory: pytest.TempPathFactory
) -> StudyContext:
    """A bench over the small packages, under a random model."""
    root = tmp_path_factory.mktemp("micro")
    torch.set_num_threads(1)
    general = read_general(sizes=SIZES, find=small)
    words = learn_tokenizer((d.text for d in general.base), vocabulary=300, longest=256)
    make_language_model(SHAPE, words=words, seed=0).save_pretrained(root / "model")
    words.save_pretrained(root / "model")
    backbone = redhost.Backbone.load(f"hf:{root / 'model'}", task=generation)
    corpora = read_corpora(sizes=SIZES, find=small)
    return StudyContext(backbone, corpora, setting=MICRO, folder=root / "features")


def no_progress(_: str) -> None:
    """Show no progress."""


@pytest.fixture(scope="module")
def finished(context: StudyContext, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The results of one seed, and where its stages lie."""
    folder = tmp_path_factory.mktemp("study")
    out, work = folder / "out", folder / "work"
    path = study(context, name="micro", seeds=1, out=out, folder=work, say=no_progress)
    return path, folder / "work"


@pytest.fixture(scope="module")
def metrics(finished: tuple[Path, Path]) -> dict[str, Any]:
    """What was written."""
    return json.loads(finished[0].read_text("utf-8"))


# -- the study -----------------------------------------------------------------------------------


def test_every_system_is_evaluated_on_every_domain(
    metrics: dict[str, Any], context: StudyContext
) -> None:
    routers = {
        "average",
        "balanced",
        "robust",
        "robust shares",
        "distilled",
        "statistics",
        "bayes",
        "uniform",
    }
    residual = {"balanced, residual", "robust, residual", "robust shares, residual"}
    residual |= {"product, residual", "product, mixture"}
    monoliths = {f"monolith, {n}" for n in ("traffic", "balanced", "group DRO", "regret game")}
    experts = {f"expert {d}" for d in context.domains}
    wanted = {"base", "oracle"} | routers | residual | monoliths | experts
    assert wanted == set(metrics["systems"])
    for system in metrics["systems"].values():
        assert set(system["bits"]) == set(context.domains)
        assert all(0.1 < b["mean"] < 20 for b in system["bits"].values())
    oracle = metrics["systems"]["oracle"]
    for d in context.domains:
        assert oracle["bits"][d] == metrics["systems"][f"expert {d}"]["bits"][d]
    assert oracle["worst_regret"]["mean"] == 0.0


def test_experts_learn_their_own_domains(metrics: dict[str, Any], context: StudyContext) -> None:
    base, oracle = (metrics["systems"][n]["bits"] for n in ("base", "oracle"))
    assert all(oracle[d]["mean"] < base[d]["mean"] for d in context.domains)


def test_what_joins_the_product_leaves_it_without_a_trace(metrics: dict[str, Any]) -> None:
    product = metrics["product"]
    assert product["router_restored"] and product["most_left"] == 0.0
    assert product["changed"][0]["before"] != product["changed"][0]["with"]
    assert all(0 < w < 1 for w in product["weights"][0].values())


def test_a_second_run_reads_everything_and_writes_the_same(
    context: StudyContext, finished: tuple[Path, Path]
) -> None:
    path, work_folder = finished
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    times = {p: p.stat().st_mtime_ns for p in work_folder.rglob("*.safetensors")}
    for gone in [*work_folder.rglob("systems.json"), *work_folder.rglob("seed0.json")]:
        gone.unlink()
    study(context, name="micro", seeds=1, out=path.parent, folder=work_folder, say=no_progress)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before
    assert {p: p.stat().st_mtime_ns for p in work_folder.rglob("*.safetensors")} == times


class PulledError(Exception):
    """Somebody pulled the plug."""


def test_a_run_that_is_stopped_again_and_again_ends_with_the_same(
    context: StudyContext, metrics: dict[str, Any], tmp_path: Path
) -> None:
    short = copy.copy(context)
    short.setting = replace(MICRO, products=0)

    def attempt(stop: str | None) -> Path:
        def say(what: str) -> None:
            if stop is not None and what.endswith(stop):
                raise PulledError

        out = tmp_path / "out"
        return study(short, name="micro", seeds=1, out=out, folder=tmp_path / "work", say=say)

    for stop in ("expert sums", "systems", "monolith, group DRO", "rarity"):
        with pytest.raises(PulledError):
            attempt(stop)
    again = json.loads(attempt(None).read_text("utf-8"))
    assert again["product"] is None
    for name, system in again["systems"].items():
        assert system == metrics["systems"][name]
    assert again["rarity"] == metrics["rarity"] and again["divergence"] == metrics["divergence"]


def test_another_setting_is_another_study(
    context: StudyContext, finished: tuple[Path, Path]
) -> None:
    other = copy.copy(context)
    other.setting = replace(MICRO, rank=5, products=0)
    with pytest.raises(PulledError):

        def say(what: str) -> None:
            raise PulledError(what)

        study(other, name="micro", seeds=1, out=finished[0].parent, folder=finished[1], say=say)
    assert len([p for p in finished[1].iterdir() if p.name.startswith("micro-")]) == 2


# -- the parts on real rows ----------------------------------------------------------------------


def test_what_a_router_reads_does_not_know_the_future(context: StudyContext) -> None:
    text = context.texts("python", "test")[0]
    whole, half = context.tokens([text]), context.tokens([text[: len(text) // 2] + " moon moon"])
    same = next(
        n
        for n, (a, b) in enumerate(zip(whole.target, half.target, strict=False))
        if int(a) != int(b)
    )
    assert same > 10
    inputs = [context.router_input(t)[: same + 1] for t in (whole, half)]
    assert torch.allclose(*inputs, atol=1e-5)
    after = [context.router_input(t)[same + 1] for t in (whole, half)]
    assert not torch.allclose(*after, atol=1e-3)


def test_passages_do_not_read_each_other(context: StudyContext) -> None:
    texts = context.texts("cpp", "test")[:2]
    both, second = context.tokens(texts), context.tokens(texts[1:])
    assert torch.equal(both.by_passage(context.router_input(both))[1], context.router_input(second))


def test_tokens_are_counted_in_bytes(context: StudyContext) -> None:
    texts = context.texts("french", "test")[:3]
    tokens = context.tokens(texts)
    assert tokens.sizes == tuple(len(t.encode()) for t in texts)
    assert len(tokens) == sum(tokens.lengths) == sum(map(context.count, texts))


def test_budgets_hold(context: StudyContext) -> None:
    for domain in context.domains:
        for part, most in MICRO.tokens.items():
            assert sum(map(context.count, context.texts(domain, part))) <= most
    assert sum(map(context.count, context.background)) <= MICRO.background


def test_the_residual_sum_of_one_expert_is_that_expert(context: StudyContext) -> None:
    tokens = context.part("sums", "gate")
    expert = untrained(context, seed=1)
    expert.V.data += 0.1 * torch.eye(*expert.V.shape)
    alone = answer_log_p(context, tokens, expert)
    weights = torch.tensor([[1.0, 0.0]]).expand(len(tokens), -1)
    mixed = residual_log_p(context, tokens, weights, [expert, untrained(context, seed=2)])
    assert torch.allclose(alone, mixed, atol=1e-5)
    assert not torch.allclose(alone, answer_log_p(context, tokens, None), atol=1e-2)


def test_a_rare_domain_has_few_rows_only_where_wanted(
    context: StudyContext, tmp_path: Path
) -> None:
    experts = {d: untrained(context, seed=n) for n, d in enumerate(context.domains)}
    tables = Tables(context, experts, shared=tmp_path, own=tmp_path)
    gates = TrainedGates(context, tables, seed=0, folder=tmp_path / "gates")
    sizes = [len(h.x) for h in gates.seen("french")]
    whole = [len(h.x) for h in gates.seen(None)]
    place = context.domains.index("french")
    assert sizes[place] == max(2, whole[place] // RARER)
    assert [s for k, s in enumerate(sizes) if k != place] == [
        s for k, s in enumerate(whole) if k != place
    ]
    lam = frequencies(context.domains, "french")
    assert float(lam.sum()) == pytest.approx(1)
    assert float(lam[0] / lam[place]) == pytest.approx(RARER)


def made_up(domain: int, *, seed: int, rows: int = 400) -> GateRows:
    """Rows that show their domain in one noisy number; their own expert says them e² better."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 48, generator=generator)
    x[:, domain] += 1.5
    log_p = torch.full((rows, 5), -4.0)
    log_p[:, domain] = -2.0
    return GateRows(x=x, log_p=log_p, lengths=(rows,), scale=1.0)


def test_the_robust_router_protects_the_rare_domain(context: StudyContext, tmp_path: Path) -> None:
    longer = copy.copy(context)
    longer.setting = replace(MICRO, gate_steps=300, gate_every=20)
    gates = TrainedGates(
        longer, Tables(longer, {}, shared=tmp_path, own=tmp_path), seed=0, folder=tmp_path
    )
    vars(gates)["fit"] = [made_up(k, seed=k) for k in range(5)]
    vars(gates)["aside"] = [made_up(k, seed=10 + k) for k in range(5)]
    test = [made_up(k, seed=20 + k) for k in range(5)]
    traffic = frequencies(context.domains, "python")
    trained = gates.played("average", traffic), gates.played("robust", gates.even, moves=True)
    average, robust = (regret_of(gate, test) for gate in trained)
    assert int(average.argmax()) == context.domains.index("python")
    assert float(robust.max()) < 0.7 * float(average.max())


def test_an_expert_without_a_gain_is_no_unit(context: StudyContext, tmp_path: Path) -> None:
    experts = {d: untrained(context, seed=n) for n, d in enumerate(context.domains)}
    experts["cpp"].V.data += 0.1 * torch.eye(*experts["cpp"].V.shape)
    tables = Tables(context, experts, shared=tmp_path, own=tmp_path)
    gains = TrainedGates(context, tables, seed=0, folder=tmp_path / "gates").gains
    assert gains[1:].tolist() == pytest.approx([LEAST] * 4)
    cpp = context.part("cpp", "gate")
    lost = tables.column("base", "cpp", "gate") - tables.column("cpp", "cpp", "gate")
    assert float(gains[0]) == pytest.approx(max(LEAST, -float(lost.mean()) * cpp.scale))


def test_a_regret_does_not_know_how_hard_the_rows_are() -> None:
    torch.manual_seed(0)
    gate = torch.nn.Linear(48, 5)
    rows = [made_up(k, seed=k) for k in range(5)]
    harder = [replace(h, log_p=h.log_p - k) for k, h in enumerate(rows)]
    with torch.no_grad():
        assert torch.allclose(regret_of(gate, rows), regret_of(gate, harder), atol=1e-5)
        losses = [mixture_losses(gate, [(h.x, h.log_p) for h in some]) for some in (rows, harder)]
    assert float((losses[1] - losses[0]).max()) == pytest.approx(4.0, abs=1e-4)


# -- the page ------------------------------------------------------------------------------------


def edited(metrics: dict[str, Any], system: str, domain: str, **numbers: float) -> dict[str, Any]:
    changed = copy.deepcopy(metrics)
    changed["systems"][system]["recovered"][domain] |= numbers
    return changed


def aims(metrics: dict[str, Any], opening: str) -> list[tuple[bool, str]]:
    """Targets on the page that begin so: whether they are met, and their sentences."""
    found = re.findall(
        rf"^- (met|\*\*MISSED\*\*): ({re.escape(opening)}.*)\.$", page(metrics), re.M
    )
    return [(how == "met", text) for how, text in found]


def test_an_aim_is_met_or_missed_by_the_numbers(metrics: dict[str, Any]) -> None:
    high = copy.deepcopy(metrics)
    for d in metrics["domains"]:
        high = edited(high, "robust", d, mean=0.95)
    low = edited(high, "robust", "tales", mean=0.89)
    opening = "The causal router (robust) recovers"
    assert [met for met, _ in aims(high, opening)] == [True]
    [(met, text)] = aims(low, opening)
    assert not met and text.endswith("89.0% on tales")


def test_the_aim_of_the_robust_router_is_missed_by_one_turn(metrics: dict[str, Any]) -> None:
    changed = copy.deepcopy(metrics)
    for turn in changed["rarity"]["rare"]["turns"].values():
        turn["ratio"] = 0.4
    opening = "With one domain a hundred times rarer in weight, "
    assert [met for met, _ in aims(changed, opening)] == [True]
    changed["rarity"]["rare"]["turns"]["sums"]["ratio"] = 0.6
    [(met, text)] = aims(changed, opening)
    assert not met and text.endswith("missed where sums is rare")


def test_which_side_wins_depends_on_sign_and_interval(metrics: dict[str, Any]) -> None:
    def statement(**less: float) -> str:
        changed = copy.deepcopy(metrics)
        for monolith in changed["monoliths"].values():
            monolith["router_less_mean"] = less
        return page(changed)

    opening = "At the mean over all mixtures "
    assert f"{opening}the experts win" in statement(mean=-0.2, low=-0.3, high=-0.1)
    assert f"{opening}the monolith wins" in statement(mean=0.2, low=0.1, high=0.3)
    assert f"{opening}neither side clearly wins" in statement(mean=0.2, low=-0.1, high=0.5)


def test_other_guards_of_the_page(metrics: dict[str, Any]) -> None:
    changed = copy.deepcopy(metrics)
    changed["product"]["most_left"] = 1e-6
    changed["systems"]["expert cpp"]["bits"]["cpp"]["mean"] = 99.0
    for opening in ("Every expert beats", "Adding a"):
        assert [met for met, _ in aims(changed, opening)] == [False]
    assert aims(changed, "Every expert beats")[0][1].endswith("not on cpp")
