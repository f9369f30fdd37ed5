"""The causal kinds: one training, two outputs, regrets in nats of what the kind answers with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from redhost_generate import causal
from redhost_generate.causal import LEAST, CausalMixtureRouter, CausalRouter, Tokens
from redhost_generate.truncated_logits import truncate_logits
from torch import Tensor

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import Linear, LowRank
from redhost.core.routers import build_router
from redhost.core.routers.base import AnswerLikelihoods, ColumnData
from redhost.core.routers.domain_statistics import Statistics

WIDTH, TOKENS, ROWS = 8, 34, 200
COLUMNS = ("a", "b", "backbone")
ANSWERS = {"a": 3, "b": 7}


@dataclass(frozen=True)
class Rows:
    """Tokens of one domain; `target` is what follows them."""

    h: Tensor
    target: Tensor


@pytest.fixture(scope="module")
def bus() -> redhost.Bus:
    """Return two experts that each add several nats to one token, whatever they read."""
    head = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))

    def says(token: int) -> redhost.Expert:
        U = torch.zeros(WIDTH, WIDTH)
        U[0, :2] = 1.0
        V = torch.zeros(WIDTH, WIDTH)
        V[:, 0] = 2 * head[token]
        return LowRank(U=U, V=V, activation="gelu", space="hidden")

    config = redhost.BusConfig(width=WIDTH, labels=())
    return redhost.Bus(
        Readout(classifier=head, task=redhost.plugins.make_task("generation")),
        norm=LayerNorm(width=WIDTH, eps=1e-5),
        router=build_router("linear", config, COLUMNS, 0),
        experts={name: says(token) for name, token in ANSWERS.items()},
        backbone_column=True,
    )


@pytest.fixture(scope="module")
def rows(bus: redhost.Bus) -> dict[str, dict[str, Rows]]:
    """Return two domains that overlap, so that a router has something to lose."""
    generator = torch.Generator().manual_seed(1)

    def some(name: str) -> Rows:
        h = torch.randn(ROWS, WIDTH, generator=generator)
        h[:, :2] += 2.0
        h[:, 2] += 0.7 if name == "a" else -0.7
        return Rows(h, torch.full((ROWS,), ANSWERS[name]))

    return {name: {part: some(name) for part in ("fit", "gate")} for name in ANSWERS}


def likelihoods_of(bus: redhost.Bus, rows: Rows) -> AnswerLikelihoods:
    with torch.no_grad():
        z = bus.norm(rows.h)
        columns_of = truncate_logits(bus, rows.h, z, rows.target)
        return AnswerLikelihoods(z, columns_of.alone().exp(), columns_of)


def columns_of(bus: redhost.Bus, rows: dict[str, dict[str, Rows]]) -> list[ColumnData]:
    """Return what the router may learn of the two domains."""
    data = []
    for name, parts in rows.items():
        fit, gate = likelihoods_of(bus, parts["fit"]), likelihoods_of(bus, parts["gate"])
        sums = Statistics.of_rows(fit.z, ["x"] * ROWS)
        data.append(
            ColumnData(column=name, z=fit.z, statistics=sums, truncated=fit.truncated, gate=gate)
        )
    return data


def train(bus: redhost.Bus, rows: dict[str, dict[str, Rows]], made: CausalRouter) -> CausalRouter:
    made.fine_tune(columns_of(bus, rows), steps=20)
    return made


@pytest.fixture
def summed(bus, rows) -> CausalRouter:
    return train(bus, rows, CausalRouter(width=WIDTH, columns=COLUMNS))


@pytest.fixture
def mixed(bus, rows) -> CausalRouter:
    return train(bus, rows, CausalMixtureRouter(width=WIDTH, columns=COLUMNS))


def test_both_kinds_are_one_training(summed, mixed) -> None:
    assert summed.output == "residual" and mixed.output == "mixture"
    for name, weights in summed.state_dict().items():
        assert torch.equal(mixed.state_dict()[name], weights)
        assert weights.abs().max() > 0


@torch.inference_mode()
def lost(bus: redhost.Bus, rows: Rows, router: CausalRouter, *, own: int) -> float:
    """Return nats a token lost beside the own expert, from the bus itself, in full."""
    z = bus.norm(rows.h)
    alpha, alone = torch.softmax(router(z), -1), torch.zeros(ROWS, len(COLUMNS))
    alone[:, own] = 1.0
    answer = bus.mixture if router.output == "mixture" else bus.probabilities
    columns_of = [f(rows.h, z, a) for f, a in ((bus.probabilities, alone), (answer, alpha))]
    best, found = (p.gather(1, rows.target[:, None]).log().mean() for p in columns_of)
    return float(best - found)


@pytest.mark.parametrize("kind", ["summed", "mixed"])
def test_regrets_are_nats_of_what_the_kind_answers_with(bus, rows, kind, request) -> None:
    router = request.getfixturevalue(kind)
    assert router.minimax_report is not None
    for own, name in enumerate(ANSWERS):
        nats = lost(bus, rows[name]["gate"], router, own=own)
        # With all tokens but one among the candidates a truncated sum is exact.
        assert router.minimax_report.regrets[name] == pytest.approx(nats, rel=1e-3)
    assert router.minimax_report.regret == max(router.minimax_report.regrets.values()) > 0


def test_an_expert_gains_nats_here_so_that_shares_would_be_distinguished(bus, rows) -> None:
    for own, name in enumerate(ANSWERS):
        columns_of = likelihoods_of(bus, rows[name]["gate"]).likelihood.log()
        assert float((columns_of[:, own] - columns_of[:, -1]).mean()) > 3


def test_the_two_outputs_lose_differently(summed, mixed) -> None:
    assert summed.minimax_report.regrets != pytest.approx(mixed.minimax_report.regrets, rel=0.02)


def background() -> ColumnData:
    """Return rows of no expert's domain, whose answers nobody tells."""
    z = torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(2))
    z[:, 5] += 4.0
    return ColumnData(column="backbone", z=z, statistics=Statistics.of_rows(z, ["x"] * 300))


def test_the_game_counts_regrets_as_shares_of_what_the_own_expert_gains(bus, rows) -> None:
    router = CausalRouter(width=WIDTH, columns=COLUMNS)
    parts = [likelihoods_of(bus, rows[name]["fit"]) for name in ANSWERS]
    with torch.no_grad():
        shares = router._regrets([Tokens.of(p.z, p.truncated, k) for k, p in enumerate(parts)])
    for own, (name, part) in enumerate(zip(ANSWERS, parts, strict=True)):
        log_p = part.likelihood.log()
        gain = float((log_p[:, own] - log_p[:, -1]).mean())
        nats = lost(bus, rows[name]["fit"], router, own=own)
        assert float(shares[own]) == pytest.approx(nats / gain, rel=1e-3)


def test_an_expert_that_gains_nothing_is_taken_to_gain_a_hundredth_of_a_nat(bus, rows) -> None:
    """Else its domain's share would be all that counts."""
    part = likelihoods_of(bus, rows["a"]["fit"])
    tokens = Tokens.of(part.z, part.truncated, COLUMNS.index("backbone"))
    assert tokens.gain == LEAST == 0.01


def test_columns_without_answers_are_retained_by_their_share_of_the_cross_entropy() -> None:
    router, z = CausalRouter(width=WIDTH, columns=COLUMNS), torch.ones(300, WIDTH)
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    generator, log_p = torch.Generator().manual_seed(0), torch.log_softmax(router(z[:1]), -1)[0]
    for others in ([(2, z)], [(1, z), (2, z[:3])]):
        loss = router._elsewhere(others, generator)
        torch.testing.assert_close(loss, -0.005 * sum(log_p[k] for k, _ in others))


def test_the_backbones_column_keeps_rows_of_its_own(bus, rows) -> None:
    data, away = columns_of(bus, rows), background()
    for d in data:
        d.z[:, 5] = d.gate.z[:, 5] = 0.0  # a direction that only the background has
    trained, forgot = (CausalRouter(width=WIDTH, columns=COLUMNS) for _ in range(2))
    trained.fine_tune([*data, away], steps=20)
    forgot.fine_tune(data, steps=20)
    assert (
        trained.minimax_report.mixture.keys() == trained.minimax_report.regrets.keys() == {"a", "b"}
    )
    more, less = (torch.softmax(r(away.z), -1)[:, 2].mean() for r in (trained, forgot))
    assert more > less + 0.02


def test_the_seed_settles_every_bit(bus, rows) -> None:
    made = []
    for seed in (3, 3, 4):
        router = CausalRouter(width=WIDTH, columns=COLUMNS, seed=seed)
        router.fine_tune([*columns_of(bus, rows), background()], steps=5)
        made.append(router.weight)
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_without_rows_set_aside_the_fit_rows_are_evaluated(bus, rows) -> None:
    router = CausalRouter(width=WIDTH, columns=COLUMNS)
    router.fine_tune([dataclasses.replace(d, gate=None) for d in columns_of(bus, rows)], steps=5)
    for own, name in enumerate(ANSWERS):
        nats = lost(bus, rows[name]["fit"], router, own=own)
        assert router.minimax_report.regrets[name] == pytest.approx(nats, rel=1e-3)


def test_weights_decay_while_the_game_is_played(bus, rows, summed, monkeypatch) -> None:
    monkeypatch.setattr(causal, "DECAY", 0.0)
    free = train(bus, rows, CausalRouter(width=WIDTH, columns=COLUMNS))
    assert not torch.equal(free.weight, summed.weight)


def test_experts_with_labels_of_their_own_share_no_residual_sum(bus, rows) -> None:
    some, router = rows["a"]["fit"], CausalRouter(width=WIDTH, columns=("a",))
    own = Linear(W=torch.ones(2, WIDTH), b=torch.zeros(2), space="labels", labels=("x", "y"))
    mixture = redhost.Bus(
        Readout(classifier=bus.classifier), norm=bus.norm, router=router, experts={"a": own}
    )
    assert router.truncate(mixture, some.h, bus.norm(some.h), some.target) is None
    residual = CausalRouter(width=WIDTH, columns=COLUMNS)
    shared = residual.truncate(bus, some.h, bus.norm(some.h), some.target)
    assert shared is not None and shared.alone().shape == (ROWS, len(COLUMNS))


def test_one_domain_alone_plays_no_game(bus, rows) -> None:
    router = CausalRouter(width=WIDTH, columns=COLUMNS)
    router.fine_tune([*columns_of(bus, rows)[:1], background()], steps=5)
    assert router.minimax_report is None and not router.weight.any() and not router.bias.any()


def test_progress_tells_of_both_games_to_their_end(bus, rows) -> None:
    seen: list[tuple[int, int]] = []
    router = CausalRouter(width=WIDTH, columns=COLUMNS)
    router.fine_tune(
        columns_of(bus, rows), steps=4, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(n, 20) for n in range(1, 21)] * 2  # five steps for each of the ordinary ones
