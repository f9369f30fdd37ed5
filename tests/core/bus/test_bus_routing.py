"""What a router may read before it decides, and that no expert computes a row twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.evidence import OUTPUT_FEATURES, output_features
from redhost.core.bus.experts import Linear, LowRank
from redhost.core.bus.layout import ROUTER, FeatureLayout, FeatureSegment
from redhost.core.bus.signals import BusRouter, RouterSignals
from redhost.core.bus.strategies import ForwardStrategy
from redhost.core.routers.base import as_router
from redhost.registry.errors import UsageError

B, D, C, R = 5, 8, 3, 2
LABELS = tuple("xyz")
SOFT = 0.1
"""By what routers here scale signals: several columns keep a weight."""

EVERY: tuple[ForwardStrategy, ...] = ("dense", "grouped", "gathered")


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Counting(redhost.Expert):
    """An expert that counts the rows it is asked about."""

    rows_seen = 0

    def forward(self, z: Tensor) -> Tensor:
        self.rows_seen += len(z)
        return super().forward(z)


class CountingLowRank(Counting, LowRank):
    """One whose weights can be stacked."""


class CountingLinear(Counting, Linear):
    """One that is asked itself."""


def low_rank(seed: int, *, space: str = "hidden") -> CountingLowRank:
    out = D if space == "hidden" else C
    return CountingLowRank(
        U=drawn(seed, R, D),
        V=drawn(seed + 50, out, R),
        activation="gelu",
        space=space,  # type: ignore[arg-type]
        labels=LABELS,
    )


def own(seed: int, *labels: str) -> CountingLinear:
    return CountingLinear(
        W=drawn(seed, len(labels), D),
        b=drawn(seed + 50, len(labels)),
        space="labels",
        labels=labels,
        temperature=2.0,
    )


class Plain(BusRouter):
    """A router that reads z alone: its first K numbers are the logits."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        return z[:, : self.columns]


class Mixing(Plain):
    """The same, for a bus that mixes answers."""

    output = "mixture"


class Hearing(Plain):
    """Adds everybody's evidence."""

    reads = frozenset({"confidences"})

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        assert signals is not None
        return super().forward(z) + SOFT * signals.confidences


class Looking(Plain):
    """Adds what everybody's outputs look like."""

    reads = frozenset({"output_features"})

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        assert signals is not None
        return super().forward(z) + SOFT * signals.output_features.sum(-1)


class Asking(Plain):
    """Queries the columns of a mask alone, and gives no other a weight."""

    reads = frozenset({"query"})

    def __init__(self, columns: int, mask: Tensor) -> None:
        super().__init__(columns)
        self.mask = mask

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        assert signals is not None
        first, second = self.mask.clone(), self.mask.clone()
        first[:, 1:], second[:, :1] = False, False
        querying = signals.query(first) + signals.query(second)  # one after the other
        return (z[:, : self.columns] + SOFT * querying).masked_fill(~self.mask, -torch.inf)


EXPERTS: Mapping[str, Callable[[], redhost.Expert]] = {
    "a": lambda: low_rank(1),
    "b": lambda: own(2, "p", "y"),
    "c": lambda: low_rank(3, space="logits"),
}


def make_bus(router: BusRouter, *, strategy: ForwardStrategy | None = "dense") -> redhost.Bus:
    """A bus of one expert for each space, and the backbone."""
    return redhost.Bus(
        Readout(classifier=drawn(99, C, D), labels=LABELS),
        norm=LayerNorm(width=D, eps=1e-5),
        router=router,
        experts={name: make() for name, make in EXPERTS.items()},
        backbone_column=True,
        strategy=strategy,
    ).requires_grad_(False)


@pytest.fixture
def h() -> Tensor:
    return drawn(5, B, D)


@pytest.fixture
def mask() -> Tensor:
    return torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]]) > 0


def counted(bus: redhost.Bus) -> dict[str, int]:
    named = zip(bus.ids, bus.parts(), strict=True)
    return {name: e.rows_seen for name, e in named if isinstance(e, Counting)}


def test_a_router_reads_z(h: Tensor) -> None:
    bus = make_bus(Plain(4))
    z = bus.norm(h)
    torch.testing.assert_close(bus.weights(z), torch.softmax(z[:, :4], -1))


def test_a_router_that_reads_evidence_reads_everybody(h: Tensor) -> None:
    bus = make_bus(Hearing(4))
    z = bus.norm(h)
    expected = torch.softmax(z[:, :4] + SOFT * bus.signals(z).confidences, -1)
    torch.testing.assert_close(bus.weights(z), expected)
    torch.testing.assert_close(bus(h)[1], expected)


def test_a_router_that_reads_outputs_sees_every_expert(h: Tensor) -> None:
    bus = make_bus(Looking(4))
    z = bus.norm(h)
    features = output_features(bus.parts(), z, classifier=bus.classifier, columns=4)
    assert features.shape == (B, 4, OUTPUT_FEATURES) and features[:, :3].abs().sum() > 0
    torch.testing.assert_close(bus.signals(z).output_features, features)
    torch.testing.assert_close(
        bus.weights(z), torch.softmax(z[:, :4] + SOFT * features.sum(-1), -1)
    )


class Secret(Hearing):
    """Reads what it does not declare."""

    reads = frozenset({"output_features"})


def test_a_router_gets_no_signal_that_it_does_not_declare(h: Tensor) -> None:
    bus = make_bus(Secret(4))
    for ask in (lambda: bus(h), lambda: bus.weights(bus.norm(h))):
        with pytest.raises(UsageError) as refused:
            ask()
        assert (refused.value.expected, refused.value.found) == (
            "one of output_features",
            "confidences",
        )


@pytest.mark.parametrize("strategy", EVERY)
def test_a_router_that_queries_reads_its_choice_alone(
    h: Tensor, mask: Tensor, strategy: ForwardStrategy
) -> None:
    bus = make_bus(Asking(4, mask), strategy=strategy)
    z = bus.norm(h)
    logits = (z[:, :4] + SOFT * bus.signals(z).confidences).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(bus.weights(z), torch.softmax(logits, -1))


@pytest.mark.parametrize("strategy", EVERY)
def test_who_was_queried_is_not_queried_again(
    h: Tensor, mask: Tensor, strategy: ForwardStrategy
) -> None:
    bus = make_bus(Asking(4, mask), strategy=strategy)
    bus(h)
    assert counted(bus) == {"a": 3, "b": 3, "c": 4}  # the rows of the mask, once
    querying = make_bus(Hearing(4), strategy="grouped")
    querying(h)
    assert counted(querying) == {"a": B, "b": B, "c": B}


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("router", [Plain, Mixing, Hearing, Looking, Asking])
def test_an_answer_is_what_the_weights_make_of_it(
    h: Tensor, mask: Tensor, router: type[Plain], strategy: ForwardStrategy
) -> None:
    """However a router came to its weights: only they and `output` decide."""
    made = Asking(4, mask) if router is Asking else router(4)
    bus = make_bus(made, strategy=strategy)
    z = bus.norm(h)
    p, alpha = bus(h)
    torch.testing.assert_close(alpha, bus.weights(z))
    torch.testing.assert_close(bus.answer(h, z, alpha), p)
    mixed, summed = bus.mixture(h, z, alpha), bus.probabilities(h, z, alpha)
    expected, other = (mixed, summed) if router is Mixing else (summed, mixed)
    torch.testing.assert_close(p, expected)
    assert (p - other).abs().max() > 1e-3
    torch.testing.assert_close(p.sum(-1), torch.ones(B))


@pytest.mark.parametrize("name", ["probabilities", "residual", "logits"])
def test_a_grouped_bus_queries_only_who_has_a_weight(h: Tensor, mask: Tensor, name: str) -> None:
    bus = make_bus(Plain(4), strategy="grouped")
    getattr(bus, name)(h, bus.norm(h), mask / mask.sum(-1, keepdim=True))
    assert counted(bus) == {"a": 3, "b": 3, "c": 4}


def test_a_dense_bus_queries_nobody_whose_weights_are_stacked(h: Tensor) -> None:
    bus = make_bus(Plain(4))
    bus(h)
    assert counted(bus) == {"a": 0, "b": B, "c": 0}


class Two(Plain):
    """Gives a say to the first two columns alone, and says so."""

    chosen = 2

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        logits = super().forward(z).clone()
        logits[:, 2:] = -torch.inf
        return logits


@pytest.mark.parametrize("others", [{}, {"a": lambda: own(2, "p", "y")}], ids=["", "mixture"])
def test_a_gathered_bus_reads_no_weights_of_who_has_no_say(h: Tensor, others) -> None:
    """An idle expert of NaN, where zero times it would be NaN, as it is in the dense pass."""
    idle = low_rank(9)
    idle.V.data.fill_(torch.nan)
    experts = {**{n: low_rank(i) for i, n in enumerate("abc")}, "d": idle}
    experts |= {name: make() for name, make in others.items()}

    def finite(strategy: ForwardStrategy, router: BusRouter) -> bool:
        bus = redhost.Bus(
            Readout(classifier=drawn(99, C, D), labels=LABELS),
            norm=LayerNorm(width=D, eps=1e-5),
            router=router,
            experts=experts,
            strategy=strategy,
        ).requires_grad_(False)
        return bool(bus(h)[0].isfinite().all())

    assert finite("gathered", Two(4)) and not finite("dense", Two(4))
    assert not finite("gathered", Plain(4))  # one that says nothing of whom it chose
    rows_seen = torch.tensor([True, True, False, False]).expand(B, -1)
    assert finite("dense", Asking(4, rows_seen))  # computed once, no stack


def tapped(
    *, segments: tuple[FeatureSegment, ...], strategy: ForwardStrategy = "dense"
) -> redhost.Bus:
    experts = {"a": low_rank(1), "b": low_rank(2)}
    return redhost.Bus(
        Readout(classifier=drawn(99, C, D), labels=LABELS),
        norm=LayerNorm(width=D, eps=1e-5),
        router=Plain(2),
        experts=experts,
        layout=FeatureLayout(width=D, segments=segments),
        strategy=strategy,
    ).requires_grad_(False)


def segment(reader: str, *, normalised: bool = True) -> FeatureSegment:
    return FeatureSegment(
        key=reader,
        width=D,
        normalised=normalised,
        compute=None,
        readers=(reader,),
        instead=True,
    )


@pytest.mark.parametrize("strategy", EVERY)
def test_an_expert_with_a_tap_reads_its_own_chunk(h: Tensor, strategy: ForwardStrategy) -> None:
    wide = torch.cat([h, 3.0 * drawn(6, B, D)], -1)
    bus = tapped(segments=(segment("b"),), strategy=strategy)
    norm, (a, b) = LayerNorm(width=D, eps=1e-5), bus.parts()
    z, r = norm(h), norm(wide[:, D:])
    assert torch.equal(bus.norm(wide), torch.cat([z, r], -1))
    p, alpha = bus(wide)
    torch.testing.assert_close(alpha, torch.softmax(z[:, :2], -1))
    hat = h + alpha[:, :1] * a(z) + alpha[:, 1:] * b(r)
    torch.testing.assert_close(bus.residual(wide, bus.norm(wide), alpha), hat)
    torch.testing.assert_close(p, torch.softmax(hat @ drawn(99, C, D).T, -1))
    torch.testing.assert_close(bus.delta(bus.norm(wide), 0), a(z))
    torch.testing.assert_close(bus.delta(bus.norm(wide), 1), b(r))
    for output, read in zip(bus.ensemble.all_outputs(bus.norm(wide)), (z, r), strict=True):
        torch.testing.assert_close(output.delta, bus.parts()[output.column](read))
    features = output_features((a, b), (z, r), classifier=bus.classifier, columns=2)
    torch.testing.assert_close(bus.signals(bus.norm(wide)).output_features, features)


def test_a_router_reads_the_chunk_that_is_its_own(h: Tensor) -> None:
    wide = torch.cat([h, drawn(6, B, D)], -1)
    bus = tapped(segments=(segment(ROUTER, normalised=False),))
    bus.router = as_router(Last())
    torch.testing.assert_close(bus(wide)[1], torch.softmax(wide[:, -2:], -1))


class Last(nn.Module):
    """The last two numbers a router reads are its logits."""

    def forward(self, z: Tensor) -> Tensor:
        return z[:, -2:]
