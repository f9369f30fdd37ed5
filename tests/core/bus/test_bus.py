"""The bus: its equations by hand, and the algebraic laws of the host."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import ClassifierExpert, Linear, LowRank
from redhost.core.bus.signals import BusRouter, RouterSignals
from redhost.core.label_sets import DECLINED
from redhost.registry.errors import CompositionError

B, D, C, R = 7, 16, 5, 4
LABELS = tuple("vwxyz")


class Fixed(BusRouter):
    """A router that always says the same logits."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        return self.logits.expand(len(z), -1)


def low_rank(
    seed: int,
    *,
    space: str = "hidden",
    activation: str = "gelu",
    rank: int = R,
    biased: bool = False,
) -> LowRank:
    g = torch.Generator().manual_seed(seed)
    out = D if space == "hidden" else C
    return LowRank(
        U=torch.randn(rank, D, generator=g),
        V=torch.randn(out, rank, generator=g),
        u=torch.randn(rank, generator=g) if biased else None,
        v=torch.randn(out, generator=g) if biased else None,
        activation=activation,
        space=space,  # type: ignore[arg-type]
        labels=LABELS,
    )


def own_head(seed: int, labels: Sequence[str], *, temperature: float = 1.0) -> ClassifierExpert:
    g = torch.Generator().manual_seed(seed)
    n = len(labels)
    return ClassifierExpert(
        U=torch.randn(R, D, generator=g),
        V=torch.randn(D, R, generator=g),
        W=torch.randn(n, D, generator=g),
        b=torch.randn(n, generator=g),
        activation="relu",
        labels=tuple(labels),
        temperature=temperature,
    )


def w_c(bus: redhost.Bus) -> Tensor:
    assert bus.classifier is not None
    return bus.classifier


def make_bus(
    experts: Mapping[str, redhost.Expert],
    *,
    logits: list[float] | None = None,
    backbone_column: bool = False,
    classifier: bool = True,
) -> redhost.Bus:
    g = torch.Generator().manual_seed(99)
    columns = len(experts) + backbone_column
    return redhost.Bus(
        Readout(
            classifier=torch.randn(C, D, generator=g) if classifier else None,
            labels=LABELS if classifier else (),
        ),
        norm=LayerNorm(width=D, eps=1e-5),
        router=Fixed(logits or [0.0] * columns),
        experts=experts,
        backbone_column=backbone_column,
    )


@pytest.fixture
def h() -> Tensor:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm_has_no_affine(h: Tensor, eps: float) -> None:
    norm = LayerNorm(width=D, eps=eps)
    variance = h.var(-1, unbiased=False, keepdim=True)
    torch.testing.assert_close(norm(h), (h - h.mean(-1, keepdim=True)) / (variance + eps).sqrt())
    assert (norm.width, norm.eps) == (D, eps)


def test_forward_is_the_published_equation(h: Tensor) -> None:
    experts = {"b": low_rank(1), "a": low_rank(2, biased=True)}
    bus = make_bus(experts, logits=[0.3, -0.7])
    z = bus.norm(h)
    alpha = torch.softmax(torch.tensor([0.3, -0.7]), -1)
    hat = h + alpha[0] * experts["a"](z) + alpha[1] * experts["b"](z)
    p, weights = bus(h)
    torch.testing.assert_close(p, torch.softmax(hat @ w_c(bus).T, -1))
    torch.testing.assert_close(weights, alpha.expand(B, -1))
    assert bus.columns == ("a", "b")


def test_logit_experts_add_to_the_logits(h: Tensor) -> None:
    experts = {"a": low_rank(1), "l": low_rank(2, space="logits")}
    bus = make_bus(experts)
    z, alpha = bus.norm(h), torch.full((B, 2), 0.5)
    expected = (h + 0.5 * experts["a"](z)) @ w_c(bus).T + 0.5 * experts["l"](z)
    torch.testing.assert_close(bus.logits(h, z, alpha), expected)


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "tanh", "identity"])
def test_stack_equals_the_sum_of_unequal_experts(h: Tensor, activation: str) -> None:
    experts: dict[str, redhost.Expert] = {
        "a": low_rank(1, activation=activation, rank=3),
        "b": low_rank(2, rank=5, biased=True),
        "c": low_rank(3, activation=activation, rank=1, biased=True),
        "d": Linear(W=torch.randn(D, D), b=torch.randn(D), space="hidden", labels=LABELS),
    }
    bus = make_bus(experts)
    z = bus.norm(h)
    alpha = torch.rand(B, 4, generator=torch.Generator().manual_seed(0))
    expected = h + sum(alpha[:, i : i + 1] * experts[n](z) for i, n in enumerate("abcd"))
    torch.testing.assert_close(bus.residual(h, z, alpha), expected)


def test_zero_weights_give_the_backbone_bit_for_bit(h: Tensor) -> None:
    bus = make_bus({"a": low_rank(1), "b": low_rank(2)})
    alone = torch.softmax(h @ w_c(bus).T, -1)
    assert torch.equal(bus.probabilities(h, bus.norm(h), torch.zeros(B, 2)), alone)


def test_one_expert_at_one_is_that_expert_alone(h: Tensor) -> None:
    experts = {"a": low_rank(1), "b": low_rank(2)}
    bus = make_bus(experts)
    z = bus.norm(h)
    expected = torch.softmax((h + experts["b"](z)) @ w_c(bus).T, -1)
    torch.testing.assert_close(bus.alone(h, z, 1), expected, atol=1e-6, rtol=1e-5)


def test_order_of_installation_never_matters(h: Tensor) -> None:
    experts = {"a": low_rank(1), "b": low_rank(2), "c": low_rank(3, rank=2)}
    answers = [
        make_bus(dict(options), logits=[0.1, 0.2, 0.3])(h)[0]
        for options in itertools.permutations(experts.items())
    ]
    assert all(torch.equal(a, answers[0]) for a in answers)


def test_adding_and_removing_restores_every_bit(h: Tensor) -> None:
    two = {"a": low_rank(1), "b": low_rank(2)}
    before, _ = make_bus(two, logits=[0.1, 0.9])(h)
    make_bus({**two, "c": low_rank(3)})(h)
    after, _ = make_bus(two, logits=[0.1, 0.9])(h)
    assert torch.equal(before, after)


def test_a_duplicate_changes_nothing_when_it_shares_the_weight(h: Tensor) -> None:
    one = make_bus({"a": low_rank(1)})
    two = make_bus({"a": low_rank(1), "a2": low_rank(1)}, logits=[0.4, -1.3])
    torch.testing.assert_close(two(h)[0], one(h)[0])


def test_a_batch_equals_its_rows(h: Tensor) -> None:
    bus = make_bus({"a": low_rank(1), "b": own_head(2, "pq")})
    rows = torch.cat([bus(h[i : i + 1])[0] for i in range(B)])
    torch.testing.assert_close(bus(h)[0], rows, atol=1e-6, rtol=1e-5)


def test_own_labels_make_a_proper_mixture(h: Tensor) -> None:
    experts = {"a": low_rank(1), "o": own_head(2, "pqv", temperature=2.0)}
    bus = make_bus(experts, logits=[0.0, 1.0])
    p, alpha = bus(h)
    assert bus.labels == (*LABELS, "p", "q")
    torch.testing.assert_close(p.sum(-1), torch.ones(B))
    z = bus.norm(h)
    p_o = torch.softmax(experts["o"](z) / 2.0, -1)
    torch.testing.assert_close(p[:, 5], alpha[:, 1] * p_o[:, 0])
    shared = torch.softmax((h + experts["a"](z)) @ w_c(bus).T, -1)
    torch.testing.assert_close(p[:, 0], alpha[:, 0] * shared[:, 0] + alpha[:, 1] * p_o[:, 2])


def test_new_labels_leave_the_others_untouched_bit_for_bit(h: Tensor) -> None:
    old = {"a": low_rank(1), "m": own_head(2, "pq")}
    before = make_bus(old).each(h, make_bus(old).norm(h))
    new = make_bus({**old, "z": own_head(3, "rst")})
    after = new.each(h, new.norm(h))
    assert torch.equal(before[:, 0], after[:, 0, : before.shape[-1]])
    assert torch.equal(before[:, 1], after[:, 1, : before.shape[-1]])


def test_the_backbone_column_changes_nothing(h: Tensor) -> None:
    bus = make_bus({"a": low_rank(1)}, backbone_column=True)
    assert bus.columns == ("a", "backbone")
    assert torch.equal(bus.alone(h, bus.norm(h), 1), torch.softmax(h @ w_c(bus).T, -1))


def test_without_backbone_labels_the_backbone_column_says_none(h: Tensor) -> None:
    bus = make_bus({"o": own_head(1, "pq")}, backbone_column=True, classifier=False)
    assert bus.labels == (DECLINED, "p", "q")
    assert torch.equal(bus.alone(h, bus.norm(h), 1), torch.tensor([[1.0, 0, 0]]).expand(B, -1))


@pytest.mark.parametrize(("names", "found"), [("a", "a"), ("l", "l"), ("loa", "a, l")])
def test_who_writes_to_a_classifier_needs_one(names: str, found: str) -> None:
    experts = {"l": low_rank(2, space="logits"), "a": low_rank(1), "o": own_head(3, "pq")}
    with pytest.raises(CompositionError) as raised:
        make_bus({name: experts[name] for name in names}, classifier=False)
    assert str(raised.value) == (
        f"the backbone has no classifier: expected experts with labels of their own, found {found}"
    )


def test_the_classifier_is_not_saved_with_a_bus() -> None:
    """It is the backbone's; `to` moves it all the same."""
    bus = make_bus({"a": low_rank(1)})
    assert not [name for name in bus.state_dict() if "classifier" in name]
    assert w_c(bus.to(torch.float64)).dtype == torch.float64


def test_no_classifier_no_logits(h: Tensor) -> None:
    bus = make_bus({"o": own_head(1, "pq")}, classifier=False)
    with pytest.raises(CompositionError, match=r"^the backbone has no classifier$"):
        bus.logits(h, bus.norm(h), torch.ones(B, 1))


def test_labels_are_the_backbones_then_each_experts_own() -> None:
    experts = {"z": own_head(1, "pv"), "m": own_head(2, "qp"), "a": low_rank(3)}
    assert make_bus(experts).labels == (*LABELS, "q", "p")
    own = {name: experts[name] for name in "zm"}
    assert make_bus(own, classifier=False).labels == (DECLINED, "q", "p", "v")
    named = make_bus({"o": own_head(1, ("none", "a|b"))}, classifier=False)
    assert named.labels == (DECLINED, "none", "a|b")
    assert make_bus({"a": low_rank(1)}).answers == C
    assert make_bus(experts).answers == C + 2


def test_shares_of_the_shared_classifier_are_renormalised(h: Tensor) -> None:
    """p_H knows only how those who share it compare, and is nothing where none has a say."""
    experts = {"a": low_rank(1), "b": low_rank(2), "o": own_head(3, "pq")}
    bus = make_bus(experts)
    z, alpha = bus.norm(h), torch.tensor([[0.1, 0.3, 0.6]]).expand(B, -1)
    p = bus.probabilities(h, z, alpha)
    two = make_bus({name: experts[name] for name in "ab"})
    shared = two.probabilities(h, z, torch.tensor([[0.25, 0.75]]).expand(B, -1))
    torch.testing.assert_close(p[:, :C], 0.4 * shared)
    none = bus.probabilities(h, z, torch.tensor([[0.0, 0.0, 1.0]]).expand(B, -1))
    assert torch.equal(none[:, :C], torch.zeros(B, C))
    torch.testing.assert_close(none.sum(-1), torch.ones(B))


def test_mixture_is_the_weighted_sum_of_answers(h: Tensor) -> None:
    bus = make_bus({"a": low_rank(1), "b": low_rank(2)})
    z = bus.norm(h)
    alpha = torch.tensor([[0.25, 0.75]]).expand(B, -1)
    expected = 0.25 * bus.alone(h, z, 0) + 0.75 * bus.alone(h, z, 1)
    torch.testing.assert_close(bus.mixture(h, z, alpha), expected)


def test_forward_stores_nothing(h: Tensor) -> None:
    bus = make_bus({"a": low_rank(1), "b": own_head(2, "pq")})
    before = {k: id(v) for m in bus.modules() for k, v in vars(m).items()}
    bus(h)
    assert {k: id(v) for m in bus.modules() for k, v in vars(m).items()} == before


def test_an_answer_of_its_own_runs_no_other_expert(h: Tensor) -> None:
    experts = {"a": own_head(1, ("p", "n")), "b": own_head(2, ("q", "n"))}
    bus, ran = make_bus(experts, backbone_column=True), list[redhost.Expert]()
    for stack in bus.ensemble.head_stacks:
        stack.register_forward_pre_hook(lambda stack, _: ran.append(stack))
    z, places = bus.norm(h), [bus.labels.index(y) for y in ("q", "n")]
    own = bus.own_answer(h, z, 1)
    assert own.shape == (B, 2) and not ran
    torch.testing.assert_close(own, bus.alone(h, z, 1)[:, places])
    assert len(ran) == 1  # the stack of both


def test_only_sets_of_labels_ask_who_knows_a_label(h: Tensor) -> None:
    experts = {"a": own_head(1, ("x", "y")), "b": own_head(2, ("y", "n"))}
    for classifier in (True, False):
        assert make_bus(experts, classifier=classifier, backbone_column=True).knows is None


def test_answers_are_as_many_as_labels_or_classes() -> None:
    assert make_bus({"a": low_rank(1)}).answers == C == len(LABELS)
    own = {"a": own_head(1, ("p", "q"))}
    assert make_bus(own).answers == C + 2
    assert make_bus(own, classifier=False).answers == 3  # with `DECLINED`
    many = redhost.Bus(
        Readout(classifier=torch.zeros(C, D)),
        norm=LayerNorm(width=D, eps=1e-5),
        router=Fixed([0.0]),
        experts={"a": low_rank(1)},
    )
    assert (many.labels, many.answers) == ((DECLINED,), C)
