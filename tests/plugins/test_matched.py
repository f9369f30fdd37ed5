"""`redhost lab matched`: equal sizes, the recipe of the host, known eigenvalues, one page."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from red_lab.matched import run as running
from red_lab.matched.apart import Alone, Composition, train_experts, train_gate
from red_lab.matched.choice import choose
from red_lab.matched.command import matched
from red_lab.matched.data import Part, Problem
from red_lab.matched.hessian import hessian_product, sharpness, top_eigenvalue
from red_lab.matched.listening import listening_router
from red_lab.matched.measure import hits, measure
from red_lab.matched.recipe import ARITHMETIC, TEXT, Recipe, descend
from red_lab.matched.report import page
from red_lab.matched.summary import SCHEMA
from red_lab.matched.systems import Dense, Soft, Sparse, matched_width
from red_lab.matched.tasks import arithmetic, load
from red_lab.matched.train import LISTENING, RED, train_all
from red_lab.newsgroups import TEAMS, owner
from red_lab.red import queries
from red_lab.red.base import BaseSettings
from red_lab.red.plan import Plan

import redhost
from redhost.mechanisms import SparseMixture
from redhost.testing import tiny_backbone

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "matched"
DOMAINS = ("a", "b", "c", "d", "e")
LABELS = tuple((f"{d}0", f"{d}1", f"{d}2") for d in DOMAINS)
WIDTH, CLASSES = 16, 15
SHORT = Recipe(epochs=3, batch=32, learning_rate=1e-2, weight_decay=0.01, dropout=0.1)
SYSTEMS = ["dense head", "soft MoE", "sparse top-2 MoE", RED, LISTENING]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made_up(kind: str, *, rows: int = 150, seed: int = 0) -> Problem:
    """Return Gaussian classes; through a random classifier, or with labels of the experts'."""
    generator = torch.Generator().manual_seed(seed)
    means = 1.5 * torch.randn(CLASSES, WIDTH, generator=generator)
    norm = redhost.LayerNorm(width=WIDTH, eps=1e-5)

    def part() -> Part:
        target = torch.arange(rows) % CLASSES
        h = means[target] + torch.randn(rows, WIDTH, generator=generator)
        return Part(h=h, z=norm(h), target=target, owner=target // 3)

    train, valid, test = part(), part(), part()
    shared = 0.3 * torch.randn(CLASSES, WIDTH, generator=generator)
    return Problem(
        name=kind,
        domains=DOMAINS,
        labels_of=LABELS,
        train=train,
        valid=valid,
        test=test,
        clusters=tuple(f"{seed} {n // 2}" for n in range(rows)),
        norm=norm,
        classifier=shared if kind == "arithmetic" else None,
    )


@pytest.fixture(params=["arithmetic", "text"])
def problem(request) -> Problem:
    return made_up(request.param)


def quiet(_: str) -> None:
    """Say nothing."""


def symmetric(values: list[float]) -> torch.Tensor:
    """Return a matrix with these eigenvalues in a random basis."""
    generator = torch.Generator().manual_seed(3)
    shape = (len(values), len(values))
    basis, _ = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))
    return basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T


@pytest.mark.parametrize(
    ("values", "top"),
    [([5.0, 2.0, 1.0, 0.0], 5.0), ([3.0, 1.0, -5.0], 3.0), ([-4.0, -1.0, -2.0], -1.0)],
)
def test_power_iteration_finds_the_top_of_a_quadratic(values, top) -> None:
    """Also where the largest magnitude is at the other end."""
    matrix = symmetric(values)
    x = torch.ones(len(values), dtype=torch.float64, requires_grad=True)
    product = hessian_product(0.5 * x @ matrix @ x, [x])
    v = torch.arange(len(values), dtype=torch.float64)
    torch.testing.assert_close(product(v), matrix @ v)
    found = top_eigenvalue(product, size=len(values), tolerance=1e-6)
    assert found.value == pytest.approx(top, abs=1e-5)
    assert found.residual <= 6e-6 and found.products < 1000


def test_of_a_constant_curvature_nothing_is_found_in_one_product() -> None:
    found = top_eigenvalue(torch.zeros_like, size=4)
    assert (found.value, found.residual, found.products) == (0.0, 0.0, 1)


def test_an_iteration_that_does_not_settle_says_so() -> None:
    """Two eigenvalues of one magnitude: no vector is reached, and the residual is not small."""
    matrix = symmetric([2.0, -2.0])
    assert top_eigenvalue(lambda v: matrix @ v, size=2, limit=20).residual > 1e-3


@pytest.mark.parametrize("kind", ["dense", "soft", "sparse", "RED"])
def test_sharpness_is_that_of_the_dense_hessian(kind, problem) -> None:
    """Of a trained tiny net, against `torch.autograd.functional.hessian`, every entry of it."""
    shape = {"width": WIDTH, "classes": CLASSES, "seed": 0}
    if kind == "RED":
        system = composed(problem)
    else:
        system = {
            "dense": lambda: Dense(units=3, **shape),
            "soft": lambda: Soft(units=2, experts=5, **shape),
            "sparse": lambda: Sparse(units=2, experts=5, k=2, **shape),
        }[kind]()
        descend(system, problem.train, recipe=SHORT, seed=0, tick=lambda: None)
    found = sharpness(system, problem.train, rows=64)
    some, twin = problem.train.some(64), system.double().requires_grad_(True)
    names = [n for n, _ in twin.named_parameters()]
    values = tuple(p.detach() for p in twin.parameters())

    def loss(*given: torch.Tensor) -> torch.Tensor:
        inputs = (some.h.double(), some.z.double())
        state = dict(zip(names, given, strict=True))
        log_p = torch.func.functional_call(
            _LogP(twin), {f"of.{n}": p for n, p in state.items()}, inputs
        )
        return torch.nn.functional.nll_loss(log_p, some.target)

    blocks = torch.autograd.functional.hessian(loss, values)
    dense = torch.cat(
        [
            torch.cat([b.reshape(v.numel(), -1) for b in row], 1)
            for v, row in zip(values, blocks, strict=True)
        ]
    )
    top = float(torch.linalg.eigvalsh(dense)[-1])
    assert found.value == pytest.approx(top, rel=1e-3) and top > 0


class _LogP(torch.nn.Module):
    """A system whose forward is log p."""

    def __init__(self, of) -> None:
        super().__init__()
        self.of = of

    def forward(self, h, z):
        return self.of.log_p(h, z)


def composed(problem: Problem, *, recipe: Recipe = SHORT) -> Composition:
    experts = train_experts(problem, recipe=recipe, seed=0, tick=quiet)
    gate = train_gate(problem, recipe=recipe, seed=0, tick=quiet)
    return Composition(experts=experts, router=gate, classifier=problem.classifier)


def test_sharpness_leaves_the_system_as_it_is() -> None:
    system = Dense(width=WIDTH, units=3, classes=CLASSES, seed=0)
    before = {k: v.clone() for k, v in system.state_dict().items()}
    sharpness(system, made_up("text").train)
    after = system.state_dict()
    assert all(torch.equal(before[k], after[k]) and after[k].dtype == torch.float32 for k in before)


@pytest.mark.parametrize(("width", "classes", "own"), [(576, 99, False), (384, 20, True)])
def test_widths_are_solved_to_a_percent_of_reds_parameters(width, classes, own) -> None:
    """At the widths of both backbones, by building the systems."""
    rank = width // 4
    experts = 5 * 2 * width * rank + (classes * (width + 1) if own else 0)
    wanted = experts + 5 * (width + 1)
    one = matched_width(wanted, width=width, classes=classes)
    each = matched_width(wanted, width=width, classes=classes, experts=5)
    shape = {"width": width, "classes": classes, "seed": 0}
    for system in (
        Dense(units=one, **shape),
        Soft(units=each, experts=5, **shape),
        Sparse(units=each, experts=5, k=2, **shape),
    ):
        assert sum(p.numel() for p in system.parameters()) == pytest.approx(wanted, rel=0.01)


def test_multiply_adds_are_those_of_the_parts_that_run(problem) -> None:
    shape = {"width": WIDTH, "classes": CLASSES, "seed": 0}
    head, gate = 7 * (WIDTH + CLASSES), 5 * WIDTH
    assert Dense(units=7, **shape).multiply_adds() == head
    assert Soft(units=7, experts=5, **shape).multiply_adds() == 5 * head + gate
    assert Sparse(units=7, experts=5, k=2, **shape).multiply_adds() == 2 * head + gate
    residuals = 5 * 2 * WIDTH * problem.rank
    assert composed(problem).multiply_adds() == residuals + CLASSES * WIDTH + gate


def test_the_loop_is_the_one_of_train_expert_bit_for_bit() -> None:
    """A dense head is the form `mlp`, so that all systems share one recipe to the last draw."""
    problem, units = made_up("text"), 6
    system = Dense(width=WIDTH, units=units, classes=CLASSES, seed=4)
    descend(system, problem.train, recipe=SHORT, seed=4, tick=lambda: None)
    settings = SHORT.settings(form="mlp", space="labels", rank=units, seed=4)
    host = redhost.train_expert(
        redhost.Rows(
            h=problem.train.h, answers=[problem.labels[int(y)] for y in problem.train.target]
        ),
        norm=problem.norm,
        classifier=None,
        labels=(),
        domain_labels=problem.labels,
        settings=settings,
    ).expert
    ours, theirs = system.head.state_dict(), host.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_a_sparse_mixture_of_all_heads_is_the_soft_one() -> None:
    """The same gate and heads: p = Σ α_i p_i, from one class and from `redhost.mechanisms`."""
    part = made_up("text").train
    soft = Soft(width=WIDTH, units=4, classes=CLASSES, experts=5, seed=0)
    descend(soft, part, recipe=SHORT, seed=0, tick=lambda: None)
    sparse = Sparse(width=WIDTH, units=4, classes=CLASSES, experts=5, k=5, seed=0)
    with torch.no_grad():
        for ours, theirs in zip(
            sparse.parameters(), (*soft.gate.parameters(), *soft.heads.parameters()), strict=True
        ):
            ours.copy_(theirs)
    sparse.eval()
    torch.testing.assert_close(sparse.log_p(part.h, part.z), soft.log_p(part.h, part.z))
    torch.testing.assert_close(sparse.alpha(part.z), soft.alpha(part.z))
    each = torch.stack([torch.softmax(f(part.z), -1) for f in soft.heads], dim=1)
    mixed = torch.einsum("be,bec->bc", soft.alpha(part.z), each)
    direct = SparseMixture(gate=soft.gate, experts=list(sparse.mixture.experts), k=5).eval()(part.z)
    torch.testing.assert_close(direct, mixed)


def test_a_row_of_the_sparse_mixture_sees_two_heads_and_training_balances_them() -> None:
    part = made_up("text").train
    system = Sparse(width=WIDTH, units=4, classes=CLASSES, experts=5, k=2, seed=0)
    descend(system, part, recipe=SHORT, seed=0, tick=lambda: None)
    alpha = system.alpha(part.z)
    assert ((alpha > 0).sum(-1) == 2).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones(len(part)))
    system.requires_grad_(False)
    plain, again = (system.loss(part.h, part.z, part.target) for _ in range(2))
    system.train()
    noisy = [system.loss(part.h, part.z, part.target) for _ in range(2)]
    assert plain == again and noisy[0] != noisy[1] and min(noisy) > plain


def test_the_composition_is_what_the_bus_of_the_host_answers(problem) -> None:
    red = composed(problem)
    own = problem.classifier is None
    bus = redhost.Bus(
        norm=problem.norm,
        router=red.router,
        experts=dict(zip(DOMAINS, red.parts(), strict=True)),
        classifier=problem.classifier,
        labels=() if own else problem.labels,
    )
    place = [bus.labels.index(y) for y in problem.labels]
    with torch.no_grad():
        p, alpha = bus(problem.test.h)
        torch.testing.assert_close(red.alpha(problem.test.z), alpha)
        ours = red.log_p(problem.test.h, problem.test.z).exp()
    torch.testing.assert_close(ours, p[:, place], atol=1e-6, rtol=1e-4)


def test_experts_are_trained_apart_on_their_own_rows_only(problem) -> None:
    """Other domains' rows may change as they like: no expert moves by a bit."""
    strange = problem.train.h.clone()
    strange[problem.train.owner != 2] += 5
    moved = dataclasses.replace(problem.train, h=strange, z=problem.norm(strange))
    other = dataclasses.replace(problem, train=moved)
    one, two = (
        train_experts(p, recipe=SHORT, seed=0, tick=quiet)[2].state_dict() for p in (problem, other)
    )
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_an_expert_alone_is_judged_by_what_its_training_minimised(problem) -> None:
    red = composed(problem)
    mine = problem.train.of(3)
    alone = Alone(red.parts()[3], classifier=problem.classifier, first=9)
    with torch.no_grad():
        delta = red.parts()[3](mine.z)
        if problem.classifier is None:
            wanted = torch.nn.functional.cross_entropy(delta, mine.target - 9)
        else:
            logits = (mine.h + delta) @ problem.classifier.T
            wanted = torch.nn.functional.cross_entropy(logits, mine.target)
        torch.testing.assert_close(alone.loss(mine.h, mine.z, mine.target), wanted)


def test_the_hosts_router_learns_the_domains_in_closed_form(problem) -> None:
    experts = train_experts(problem, recipe=SHORT, seed=0, tick=quiet)
    router = listening_router(problem, experts)
    with torch.no_grad():
        right = router(problem.test.z).argmax(-1) == problem.test.owner
    assert right.double().mean() > 0.6
    assert not list(router.parameters()) and router.stored() > 6 * WIDTH**2
    voices = 0 if problem.classifier is None else 5 * CLASSES * WIDTH
    assert router.multiply_adds() == 5 * WIDTH**2 + CLASSES * WIDTH + voices


def test_all_systems_learn_what_can_be_learnt(problem) -> None:
    recipe = dataclasses.replace(SHORT, epochs=40)
    trained = train_all(problem, recipe=recipe, seed=0, tick=quiet)
    assert list(trained) == SYSTEMS
    right = {n: float(hits(t.system, problem.train).mean()) for n, t in trained.items()}
    assert min(right.values()) > 6 / CLASSES, right


def test_the_same_seed_twice_measures_the_same_but_for_seconds(problem) -> None:
    ticks: list[str] = []
    one, two = (measure(problem, recipe=SHORT, seed=1, tick=ticks.append) for _ in range(2))
    for told in (one, two):
        for system in told["systems"].values():
            assert system.pop("seconds") >= 0
    assert one == two
    assert len(ticks) == 2 * running.TRAININGS * SHORT.epochs
    other = measure(problem, recipe=SHORT, seed=2, tick=quiet)
    assert other["composed"] != one["composed"]


def test_epochs_are_chosen_on_validation_rows_and_remembered(tmp_path) -> None:
    problem, opened = made_up("text"), []

    def blind() -> Problem:
        opened.append(1)
        return dataclasses.replace(problem, test=problem.test.some(0))

    told = [
        choose(
            blind,
            recipe=SHORT,
            file=tmp_path / "epochs.json",
            shown=lambda *_: quiet,
            epochs=(1, 6),
        )
        for _ in range(2)
    ]
    assert told[0] == told[1] and len(opened) == 1 and told[0]["epochs"] == 6
    assert told[0]["rows"] == len(problem.valid)
    assert list(told[0]["valid"]["6"]) == SYSTEMS[:-1]


def tiny_load(name: str, *, seed: int, work: Path) -> Problem:
    return made_up(name, seed=seed if name == "arithmetic" else 0)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(running, "load", tiny_load)
    monkeypatch.setattr(running, "ARITHMETIC", SHORT)
    monkeypatch.setattr(running, "TEXT", SHORT)
    monkeypatch.setattr("red_lab.matched.choice.choose.__kwdefaults__", {"epochs": (1, 2)})


def without_seconds(metrics: dict) -> dict:
    for told in metrics["tasks"].values():
        for system in told["systems"].values():
            del system["seconds"]
    return metrics


def test_the_command_resumes_and_writes_a_page_of_its_metrics_alone(
    tmp_path, tiny, monkeypatch
) -> None:
    told, figures = [], []
    for name in ("one", "two"):
        out, work = tmp_path / name, tmp_path / f"{name}-work"
        given = ["--out", str(out), "--work", str(work), "--seeds", "1"]
        for task in ("text", "arithmetic"):
            result = CliRunner().invoke(matched, [*given, "--task", task], catch_exceptions=False)
            assert result.exit_code == 0
        metrics = json.loads((out / "metrics.json").read_text("utf-8"))
        assert (out / "README.md").read_text("utf-8") == page(metrics)
        running.write(metrics, out)
        figures.append((out / "systems.svg").read_bytes())
        told.append(without_seconds(metrics))
    assert told[0] == told[1] and told[0]["schema"] == SCHEMA
    assert list(told[0]["tasks"]) == ["arithmetic", "text"]
    monkeypatch.setattr(running, "measure", None)  # whoever measures again would raise
    before = (tmp_path / "one" / "metrics.json").read_bytes()
    given = ["--out", str(tmp_path / "one"), "--work", str(tmp_path / "one-work"), "--seeds", "1"]
    assert CliRunner().invoke(matched, given, catch_exceptions=False).exit_code == 0
    assert (tmp_path / "one" / "metrics.json").read_bytes() == before
    assert (tmp_path / "one" / "systems.svg").read_bytes() == figures[0]


def test_arithmetic_is_read_as_lab_red_reads_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(queries, "SIZES", (300, 60, 60))
    model = tiny_backbone(tmp_path / "model")
    plan = Plan(
        task="addition",
        protocol="seed",
        backbone=f"hf:{model}",
        seeds=1,
        base=BaseSettings(last_blocks=1, epochs=1),
    )
    problem = arithmetic(tmp_path, seed=0, plan=plan)
    asked = queries.load("addition", "seed", seed=0)
    assert [len(p) for p in (problem.train, problem.valid, problem.test)] == [300, 60, 60]
    assert problem.labels == queries.LABELS
    assert [problem.labels[int(y)] for y in problem.test.target] == [q.label for q in asked.test]
    assert [problem.domains[int(k)] for k in problem.train.owner] == [q.domain for q in asked.train]
    firsts = [0, *itertools.accumulate(len(y) for y in problem.labels_of)]
    inside = [
        firsts[k] <= y < firsts[k + 1]
        for k, y in zip(problem.train.owner.tolist(), problem.train.target.tolist(), strict=True)
    ]
    assert all(inside)
    assert len(problem.train.distinct()) == len({q.text for q in asked.train})
    assert problem.clusters == tuple(f"0 {q.cluster}" for q in asked.test)


def test_texts_are_learnt_from_but_for_validation_and_labels_stand_by_team(monkeypatch) -> None:
    """Every author's rows of all parts, in the order of teams; no row is learnt and judged."""

    def rows(part: str) -> tuple[redhost.Row, ...]:
        return tuple(redhost.Row(text=f"{part} {y}", label=y) for t in TEAMS for y in TEAMS[t])

    parts = {
        t: redhost.Parts(
            **{
                k: tuple(r for r in rows(k) if r.label in TEAMS[t])
                for k in ("train", "valid", "fit", "gate")
            }
        )
        for t in TEAMS
    }
    seen: list[str] = []

    def encode(texts) -> torch.Tensor:
        seen.extend(texts)
        return torch.randn(len(texts), WIDTH, generator=torch.Generator().manual_seed(0))

    backbone = SimpleNamespace(width=WIDTH, eps=1e-5)
    desk = SimpleNamespace(
        shop=SimpleNamespace(backbone=backbone, encode=encode), parts=parts, test=rows("test")
    )
    monkeypatch.setattr("red_lab.matched.tasks.open_desk", lambda *_, validation: desk)
    problem = load("text", seed=0, work=Path())
    assert [len(p) for p in (problem.train, problem.valid, problem.test)] == [60, 20, 20]
    assert len(set(seen)) == len(seen) == 100 and problem.classifier is None
    assert problem.domains == tuple(sorted(TEAMS)) and len(set(problem.labels)) == 20
    for part, texts in ((problem.train, seen[:60]), (problem.test, seen[80:])):
        told = [problem.labels[int(y)] for y in part.target]
        assert told == [t.partition(" ")[2] for t in texts]
        assert [problem.domains[int(k)] for k in part.owner] == [owner(y) for y in told]


def test_the_recipes_are_those_of_the_experiments_they_come_from() -> None:
    text = redhost.ExpertSettings()
    for name in ("batch", "learning_rate", "weight_decay", "dropout"):
        assert getattr(TEXT, name) == getattr(text, name)
    assert (ARITHMETIC.epochs, ARITHMETIC.batch, ARITHMETIC.dropout) == (60, 128, 0.0)


@pytest.fixture(scope="module")
def committed() -> dict:
    return json.loads((RESULTS / "metrics.json").read_text("utf-8"))


def test_the_committed_page_is_that_of_its_metrics(committed) -> None:
    assert committed["schema"] == SCHEMA
    assert (RESULTS / "README.md").read_text("utf-8") == page(committed)
    assert (RESULTS / "systems.svg").exists()


def test_the_committed_systems_are_of_one_size_and_their_curvature_settled(committed) -> None:
    assert list(committed["tasks"]) == ["arithmetic", "text"]
    for told in committed["tasks"].values():
        assert list(told["systems"]) == SYSTEMS and told["seeds"] == 3
        size = told["systems"][RED]["parameters"]
        for system in told["systems"].values():
            assert system["parameters"] == pytest.approx(size, rel=0.01)
            assert system["accuracy"]["low"] <= system["accuracy"]["mean"]
            assert system["eigenvalue"]["residual"] < 0.05
