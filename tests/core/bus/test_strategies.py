"""The three passes that sum experts: the same numbers, and who is not asked costs nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.evidence import confidence_of
from redhost.core.bus.experts import Linear, LowRank
from redhost.core.bus.signals import BusRouter
from redhost.core.bus.strategies import (
    ExpertOutput,
    ForwardStrategy,
    active_columns,
    choose_strategy,
    concat_outputs,
)
from redhost.core.routers import build_router

B, D, C, E = 6, 16, 5, 20
LABELS = tuple("vwxyz")


@pytest.fixture
def h() -> Tensor:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(3))


class Counting(LowRank):
    """A low-rank expert that counts the rows it is asked about."""

    rows_seen = 0

    def forward(self, z: Tensor) -> Tensor:
        self.rows_seen += len(z)
        return super().forward(z)


def low_rank(n: int, *, kind: type[LowRank] = LowRank, space: str = "hidden") -> LowRank:
    g, rank = torch.Generator().manual_seed(n), 1 + n % 4
    out = D if space == "hidden" else C
    return kind(
        U=torch.randn(rank, D, generator=g),
        V=torch.randn(out, rank, generator=g),
        u=torch.randn(rank, generator=g) if n % 2 else None,
        v=torch.randn(out, generator=g) if n % 2 else None,
        activation=("gelu", "relu", "tanh")[n % 3],
        space=space,  # type: ignore[arg-type]
        labels=LABELS,
    )


def own(n: int) -> Linear:
    g = torch.Generator().manual_seed(n)
    return Linear(
        W=torch.randn(2, D, generator=g),
        b=torch.randn(2, generator=g),
        space="labels",
        labels=(f"a{n}", "shared"),
        temperature=1 + n / E,
    )


def topk(columns: tuple[str, ...], *, k: int = 2) -> redhost.Router:
    made = build_router(f"topk:k={k}", redhost.BusConfig(width=D, labels=LABELS), columns, 0)
    assert made is not None
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return made


def many_experts(*, mixed: bool = False, kind: type[LowRank] = LowRank):
    makers = [low_rank] * E if not mixed else [low_rank, own, lambda n: low_rank(n, space="logits")]
    made = {f"e{n:02}": makers[n % len(makers)](n) for n in range(E)}
    if kind is not LowRank:
        made = {f"e{n:02}": low_rank(n, kind=kind) for n in range(E)}
    return made


def bus_of(
    experts, strategy: ForwardStrategy | None, *, k: int = 2, device: str = "cpu"
) -> redhost.Bus:
    columns = (*sorted(experts), "backbone")
    g = torch.Generator().manual_seed(99)
    bus = redhost.Bus(
        Readout(classifier=torch.randn(C, D, generator=g).to(device), labels=LABELS),
        norm=LayerNorm(width=D, eps=1e-5),
        router=topk(columns, k=k),
        experts=experts,
        backbone_column=True,
        strategy=strategy,
    )
    return bus.eval().requires_grad_(False)


@pytest.mark.parametrize("strategy", ["grouped", "gathered"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
@pytest.mark.parametrize("rows", [1, B])
def test_every_pass_gives_the_same_answers(h: Tensor, strategy, mixed, rows) -> None:
    experts = many_experts(mixed=mixed)
    expected, alpha = bus_of(experts, "dense")(h[:rows])
    found, same = bus_of(experts, strategy)(h[:rows])
    torch.testing.assert_close(found, expected)
    assert torch.equal(alpha, same) and ((alpha > 0).sum(-1) == 2).all()


@pytest.mark.parametrize("strategy", ["grouped", "gathered"])
def test_weights_that_no_router_gave_are_summed_whole(h: Tensor, strategy) -> None:
    experts = many_experts(mixed=True)
    dense, bus = bus_of(experts, "dense"), bus_of(experts, strategy)
    z, alpha = bus.norm(h), torch.full((B, E + 1), 1 / (E + 1))
    for name in ("probabilities", "residual", "logits"):
        found, expected = getattr(bus, name)(h, z, alpha), getattr(dense, name)(h, z, alpha)
        torch.testing.assert_close(found, expected)


def test_only_who_has_a_say_is_queried(h: Tensor) -> None:
    experts = many_experts(kind=Counting)
    _, alpha = bus_of(experts, "grouped")(h)
    rows_seen = torch.tensor([experts[i].rows_seen for i in sorted(experts)])
    assert torch.equal(rows_seen, (alpha > 0).sum(0)[:E])


def test_the_dense_pass_reads_its_stack_for_any_weights(h: Tensor) -> None:
    experts = many_experts(kind=Counting)
    bus_of(experts, "dense")(h)
    assert {e.rows_seen for e in experts.values()} == {0}


@pytest.mark.parametrize("space", ["hidden", "logits"])
def test_outputs_that_are_given_are_not_computed_again(h: Tensor, space) -> None:
    experts = {f"e{n:02}": low_rank(n, kind=Counting, space=space) for n in range(E)}
    bus = bus_of(experts, "grouped")
    z, alpha = bus.norm(h), bus(h)[1]
    outputs = bus.ensemble.selected_outputs(z, alpha)
    before = {i: e.rows_seen for i, e in experts.items()}
    found = bus.ensemble.logits(h, z, alpha, outputs=outputs)
    assert {i: e.rows_seen for i, e in experts.items()} == before
    torch.testing.assert_close(found, bus.ensemble.logits(h, z, alpha))


@pytest.mark.parametrize("strategy", ["dense", "grouped", "gathered"])
def test_what_all_say_is_what_each_says(h: Tensor, strategy) -> None:
    experts = many_experts(mixed=True)
    bus = bus_of(experts, strategy)
    z = bus.norm(h)
    outputs = bus.ensemble.all_outputs(z)
    assert [s.column for s in outputs] == list(range(E)) and all(s.rows is None for s in outputs)
    for s in outputs:
        torch.testing.assert_close(s.delta, experts[bus.ids[s.column]](z))
    confidences = bus.signals(z).confidences
    for k, name in enumerate(bus.ids):
        alone = confidence_of(experts[name], experts[name](z), bus.classifier)
        torch.testing.assert_close(confidences[:, k], alone)
    assert torch.equal(confidences[:, E], torch.zeros(B))  # the backbone has none


@pytest.mark.parametrize("rows_seen", [[], [(1, [0, 2])], [(1, [0, 2]), (4, [5]), (7, [0, 1, 5])]])
def test_only_who_is_queried_has_a_confidence(h: Tensor, rows_seen) -> None:
    bus = bus_of(many_experts(mixed=True), "grouped")
    mask = torch.zeros(B, E + 1, dtype=torch.bool)
    for column, rows in rows_seen:
        mask[rows, column] = True
    z = bus.norm(h)
    read = bus.ensemble.confidences(bus.ensemble.expert_outputs(z, active_columns(mask)), z)
    torch.testing.assert_close(read, bus.signals(z).confidences * mask)


@pytest.mark.parametrize(("count", "k", "strategy"), [(8, 2, "dense"), (9, 2, "grouped")])
def test_few_experts_are_dense_and_many_grouped(count, k, strategy) -> None:
    experts = [low_rank(n) for n in range(count)]
    router = topk(tuple(map(str, range(count))), k=k)
    away = torch.zeros(C, D)
    found = choose_strategy(experts, chosen=router.chosen, queries=False, classifier=away)
    assert found == strategy
    assert choose_strategy(experts, chosen=None, queries=False, classifier=None) == "dense"


class Few(BusRouter):
    """A router of a plugin: two columns have a weight, and it reads nothing else."""

    chosen = 2


class Asking(Few):
    """One that queries experts before it decides."""

    reads = frozenset({"query"})


def test_on_a_device_low_rank_experts_are_gathered() -> None:
    away = torch.zeros(C, D, device="meta")

    def strategy(experts: list[redhost.Expert], router: BusRouter) -> str:
        queries = "query" in router.reads
        return choose_strategy(experts, chosen=router.chosen, queries=queries, classifier=away)

    same = [low_rank(n) for n in range(E)]
    for router in (topk(tuple(map(str, range(E)))), Few()):
        assert strategy([*same], router) == "gathered"
        assert strategy([*same, low_rank(1, space="logits")], router) == "gathered"
    assert strategy([*same], Asking()) == "grouped"
    linear = Linear(W=torch.zeros(D, D), b=torch.zeros(D), space="hidden", labels=LABELS)
    assert strategy([*same, linear], Few()) == "grouped"
    assert strategy([*same, own(1)], Few()) == "grouped"
    heads = [low_rank(n, space="labels") for n in range(E)]
    assert strategy([*heads], Few()) == "grouped"


def test_a_bus_takes_the_pass_that_suits_it() -> None:
    some = {name: e for n, (name, e) in enumerate(many_experts().items()) if n < 8}
    assert bus_of(some, None).ensemble.strategy == "dense"
    assert bus_of(many_experts(), None).ensemble.strategy == "grouped"
    assert bus_of(many_experts(), None, device="meta").ensemble.strategy == "gathered"
    assert bus_of(many_experts(), None, k=5).ensemble.strategy == "dense"
    assert bus_of(many_experts(), "dense").ensemble.strategy == "dense"
    querying = redhost.Bus(
        Readout(classifier=torch.zeros(C, D, device="meta"), labels=LABELS),
        norm=LayerNorm(width=D, eps=1e-5),
        router=Asking(),
        experts=many_experts(),
    )
    assert querying.ensemble.strategy == "grouped"


def test_what_is_stacked_is_read_from_the_stack() -> None:
    experts = many_experts(kind=Counting)
    bus = bus_of(experts, "dense")
    bus.ensemble.all_outputs(torch.randn(B, D))
    assert {e.rows_seen for e in experts.values()} == {0}


def test_a_grouped_bus_holds_weights_once() -> None:
    bus = bus_of(many_experts(), "grouped")
    held = sum(p.numel() for p in bus.experts.parameters())
    buffers = sum(b.numel() for b in bus.ensemble.buffers())
    assert held > 0 and buffers == C * D  # the shared classifier alone


def test_active_lists_columns_in_order_with_their_rows() -> None:
    alpha = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = [(c, None if r is None else r.tolist()) for c, r in active_columns(alpha)]
    assert found == [(0, [1]), (1, [0, 2]), (2, [0])]
    assert list(active_columns(alpha[:1])) == [(1, None), (2, None)]
    assert list(active_columns(torch.zeros(2, 3))) == []


def test_a_table_of_outputs_names_the_rows_that_stand_for_all_where_they_lie() -> None:
    some = ExpertOutput(3, torch.tensor([1]), torch.ones(1, 2))
    rows, columns, delta = concat_outputs([ExpertOutput(0, None, torch.zeros(2, 2)), some], 2)
    assert (rows.tolist(), columns.tolist()) == ([0, 1, 1], [0, 0, 3])
    assert delta.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    away = concat_outputs([ExpertOutput(0, None, torch.zeros(2, 2, device="meta"))], 2)
    assert {t.device.type for t in away} == {"meta"}


@pytest.mark.parametrize("strategy", ["dense", "grouped", "gathered"])
@pytest.mark.parametrize(("dtype", "within"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_half_precision_experts_answer_nearly_the_same(h, strategy, dtype, within) -> None:
    exact, _ = bus_of(many_experts(), strategy)(h)
    halved = {i: e.to(dtype) for i, e in many_experts().items()}
    bus = bus_of(halved, strategy)
    found, _ = bus(h)
    assert {s.delta.dtype for s in bus.ensemble.all_outputs(bus.norm(h))} == {torch.float32}
    assert found.dtype == torch.float32 and found.isfinite().all()
    assert 0 < float((found - exact).abs().max()) < within


@pytest.mark.parametrize("strategy", ["dense", "gathered"])
def test_one_graph_and_no_second_one_after_a_swap_of_equal_shape(h: Tensor, strategy) -> None:
    import torch._dynamo.testing as dynamo

    counter = dynamo.CompileCounter()
    answer = torch.compile(lambda bus, x: bus(x)[0], backend=counter, fullgraph=True)
    for seed in (0, 50, 100):
        experts = many_experts()
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in (p for e in experts.values() for p in e.parameters()):
                p.copy_(torch.randn(p.shape, generator=g))
        bus = bus_of(experts, strategy)
        torch.testing.assert_close(answer(bus, h), bus(h)[0])
    assert counter.frame_count == 1


@pytest.mark.parametrize("strategy", ["dense", "gathered"])
def test_a_bus_that_is_moved_moves_all_that_answers(h: Tensor, strategy) -> None:
    """To the device of shapes alone: torch refuses to mix it with another."""
    bus = bus_of(many_experts(mixed=True), strategy).to("meta")
    p, alpha = bus(h.to("meta"))
    assert (p.device.type, p.shape) == ("meta", (B, len(bus.labels)))
    assert (alpha.device.type, alpha.shape) == ("meta", (B, E + 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("strategy", ["dense", "grouped", "gathered", None])
def test_a_gpu_gives_the_same_answers(h: Tensor, strategy) -> None:
    expected, _ = bus_of(many_experts(), "dense")(h)
    found, _ = bus_of(many_experts(), strategy).cuda()(h.cuda())
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)
