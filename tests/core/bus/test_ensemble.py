"""The sum over experts: what combines them, what is folded, and which columns a pass reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import ClassifierExpert, LowRank
from redhost.core.bus.strategies import ForwardStrategy
from redhost.core.routers import build_router

B, D, C, E = 6, 12, 4, 5
LABELS = tuple("wxyz")
STRATEGIES: tuple[ForwardStrategy, ...] = ("dense", "grouped", "gathered")


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expert(n: int, *, space: Any = "hidden") -> redhost.Expert:
    out = D if space == "hidden" else C
    return LowRank(
        U=draw(2, D, seed=n),
        V=draw(out, 2, seed=n + 9),
        activation="gelu",
        space=space,
        labels=LABELS,
    )


def classifier_expert(n: int, *, labels: int) -> redhost.Expert:
    return ClassifierExpert(
        U=draw(3, D, seed=n),
        V=draw(D, 3, seed=n + 1),
        W=draw(labels, D, seed=n + 2),
        b=draw(labels, seed=n + 3),
        activation="gelu",
        labels=[f"{n} {y}" for y in range(labels)],
    )


class Seen(redhost.plugins.Combiner):
    """The residual sum by einsum, which remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = list[tuple[Tensor, Tensor, Tensor]]()

    def forward(self, base: Tensor, alpha: Tensor, delta: Tensor) -> Tensor:
        self.calls.append((base, alpha, delta))
        return base + torch.einsum("bn,bno->bo", alpha, delta)


def bus_of(
    strategy: ForwardStrategy, *, combiner: Any = None, spaces: str = "hhlhl", k: int = 2
) -> redhost.Bus:
    experts = {
        f"e{n}": expert(n, space={"h": "hidden", "l": "logits"}[space])
        for n, space in enumerate(spaces)
    }
    columns = (*experts, "backbone")
    router = build_router(f"topk:k={k}", redhost.BusConfig(width=D, labels=LABELS), columns, 0)
    with torch.no_grad():
        for p in router.parameters():
            p.copy_(draw(*p.shape, seed=1))
    bus = redhost.Bus(
        Readout(classifier=draw(C, D, seed=99), labels=LABELS),
        norm=LayerNorm(width=D, eps=1e-5),
        router=router,
        experts=experts,
        backbone_column=True,
        strategy=strategy,
        combiner=combiner,
    )
    return bus.eval().requires_grad_(False)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_combiner_gets_what_the_built_in_one_adds(strategy: ForwardStrategy) -> None:
    h, seen = draw(B, D, seed=3), Seen()
    expected, weights = bus_of(strategy)(h)
    bus = bus_of(strategy, combiner=seen)
    probabilities, alpha = bus(h)
    torch.testing.assert_close(probabilities, expected)
    assert torch.equal(alpha, weights)
    (base, of_hidden, hidden), (logits, of_logits, shared) = seen.calls
    assert torch.equal(base, h)
    assert torch.equal(of_hidden, alpha[:, [0, 1, 3]]) and hidden.shape == (B, 3, D)
    assert torch.equal(of_logits, alpha[:, [2, 4]]) and shared.shape == (B, 2, C)
    torch.testing.assert_close(
        logits, (h + torch.einsum("bn,bno->bo", of_hidden, hidden)) @ bus.classifier.T
    )
    z, parts = bus.norm(h), bus.ensemble.parts
    for columns, outputs in (((0, 1, 3), hidden), ((2, 4), shared)):
        for place, column in enumerate(columns):
            delta = parts[column](z)
            if strategy == "grouped":  # only the rows where the column has a weight are computed
                delta = delta * (alpha[:, column, None] > 0)
            torch.testing.assert_close(outputs[:, place], delta)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_combiner_gets_outputs_that_were_computed_before(strategy) -> None:
    h, seen = draw(B, D, seed=3), Seen()
    bus = bus_of(strategy, combiner=seen, spaces="hhhhh")
    z, alpha = bus.norm(h), torch.full((B, E + 1), 1 / (E + 1))
    outputs = bus.ensemble.expert_outputs(z, [(1, None), (3, torch.tensor([0, 4]))])
    bus.ensemble.residual(h, z, alpha, outputs=outputs)
    [(_, _, delta)] = seen.calls
    expected = torch.zeros(B, E, D)
    expected[:, 1] = bus.ensemble.parts[1](z)
    expected[[0, 4], 3] = bus.ensemble.parts[3](z[[0, 4]])
    torch.testing.assert_close(delta, expected)


@pytest.mark.parametrize("spaces", ["hhhhh", "lllll"])
def test_the_gathered_pass_reads_only_the_columns_that_have_a_weight(spaces: str) -> None:
    bus, given = bus_of("gathered", spaces=spaces), list[int | None]()
    ensemble = bus.ensemble
    stack = ensemble.hidden_stack if spaces[0] == "h" else ensemble.logit_stack
    stack.register_forward_pre_hook(
        lambda _, __, keywords: given.append(keywords["chosen"]), with_kwargs=True
    )
    bus(draw(B, D, seed=3))
    assert given == [2]


@pytest.mark.parametrize("name", ["residual", "logits"])
def test_the_grouped_pass_computes_outputs_where_there_is_a_weight(name: str) -> None:
    h, bus, rows = draw(B, D, seed=3), bus_of("grouped"), list[int]()
    z, alpha = bus.norm(h), bus(h)[1]
    for part in bus.ensemble.parts:
        part.register_forward_pre_hook(lambda _, arguments: rows.append(len(arguments[0])))
    getattr(bus.ensemble, name)(h, z, alpha)
    assert sum(rows) == int((alpha[:, :E] > 0).sum())


def test_an_expert_with_fewer_labels_than_its_rank_is_folded_once() -> None:
    experts = {"deep": classifier_expert(1, labels=6), "flat": classifier_expert(2, labels=2)}
    bus = redhost.Bus(
        Readout(),
        norm=LayerNorm(width=D, eps=1e-5),
        router=build_router(
            "linear", redhost.BusConfig(width=D, labels=()), (*experts, "backbone"), 0
        ),
        experts=experts,
        backbone_column=True,
        strategy="grouped",
    )
    calls = list[str]()
    for name, part in experts.items():
        part.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    z = draw(B, D, seed=4)
    for column, name in enumerate(experts):
        torch.testing.assert_close(bus.ensemble.delta(z, column), experts[name](z))
    [folded] = bus.ensemble.folded
    assert [e is folded for e in bus.ensemble.answering] == [False, True]
    assert calls == ["deep", "deep", "flat"]  # on the bus, `flat` itself computes nothing
