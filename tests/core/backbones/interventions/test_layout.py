"""Segments of experts inside the trunk, by hand: the last norm moves by v, the first states stop.

An expert that adds v to what the last module returns has h' = h + v. One that ends the pass at the
embeddings reads those of the last token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

import redhost
from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import PassEnded, hooked
from redhost.core.backbones.interventions.layout import (
    TOGETHER,
    bus_part,
    check_inside,
    encode_chosen,
    inside_reader,
    intervention_of,
    read_tokens,
    with_layout,
)
from redhost.core.bus.experts import InTrunkExpert
from redhost.core.bus.layout import ROUTER, FeatureLayout, FeatureSegment
from redhost.core.bus.task import CLASSIFICATION
from redhost.core.bus.unit import WholeText
from redhost.errors import ContractError
from redhost.registry.package.manifest import Features

TEXTS = ["red 1 a", "green 22 c", "blue 3", "red 45 b"]


@dataclasses.dataclass(frozen=True, eq=False)
class Adds:
    """h' = h + v: v is added to what the model's last norm returns."""

    v: Tensor
    lowest: int = 1
    rowwise: bool = True
    key: str = ""
    changes_h: bool = True

    def apply(self, encoder: TextEncoder) -> AbstractContextManager[None]:
        return hooked(encoder, (encoder.model.norm, lambda _m, _i, output: output + self.v))


@dataclasses.dataclass(frozen=True)
class Together:
    """Passes that texts share; two are equal if they have one kind and one log."""

    encoder: TextEncoder = dataclasses.field(compare=False)
    kind: str
    log: list[tuple[str, int]] = dataclasses.field(compare=False)

    def begin(self, texts: Sequence[str], acts: Collection[Any]) -> tuple[Tensor, list[Tensor]]:
        self.log.append((f"begin {len(acts)}", len(texts)))
        h = self.encoder.encode(texts)
        return h, list(h)

    def go_on(self, texts: Sequence[str], acts: Sequence[Any], begun: Sequence[Tensor]) -> Tensor:
        self.log.append((self.kind, len(texts)))
        return torch.stack([h + act.v for h, act in zip(begun, acts, strict=True)])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AddsTogether(Adds):
    """The same in passes that texts share."""

    kind: str = "one"
    log: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    def apply(self, encoder: TextEncoder) -> AbstractContextManager[None]:
        self.log.append((f"apart {self.kind}", 0))
        return super().apply(encoder)

    def shared_passes(self, encoder: TextEncoder) -> Together | None:
        return Together(encoder, self.kind, self.log)


@dataclasses.dataclass(frozen=True, eq=False)
class Stops:
    """r is the embedding of the last token."""

    lowest: int = 0
    rowwise: bool = False
    key: str = ""
    changes_h: bool = False

    def apply(self, encoder: TextEncoder) -> AbstractContextManager[None]:
        def stop(_module: object, _inputs: object, output: Tensor) -> None:
            raise PassEnded(output)

        return hooked(encoder, (encoder.model.embed_tokens, stop))


class Inner(redhost.Expert):
    """An expert with an intervention, which one backbone alone gets."""

    def __init__(self, acts: Any, *, space: Any = "hidden", source: str = "") -> None:
        super().__init__(space=space, labels=("a", "b"))
        self.acts, self.source = acts, source

    def intervention(self, backbone: redhost.Backbone) -> Any:
        assert isinstance(backbone, redhost.Backbone)
        return self.acts


@pytest.fixture
def v(bare: redhost.Backbone) -> Tensor:
    return torch.linspace(-1, 2, bare.width)


@pytest.fixture
def plain() -> redhost.Expert:
    return redhost.Expert(space="hidden", labels=("a",))


def normalised(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def first_states(backbone: redhost.Backbone, texts: Sequence[str]) -> Tensor:
    embedding: Any = backbone.trunk.model.get_input_embeddings()
    table: Tensor = embedding.weight
    return torch.stack([table[backbone.trunk.tokens(text)[-1]] for text in texts])


def test_on_the_bus_is_the_difference_where_hidden_states_move(bare, plain, v) -> None:
    moving, labels, reader = Inner(Adds(v)), Inner(Adds(v), space="labels"), Inner(Stops())
    assert intervention_of(plain, bare) is None and intervention_of(moving, bare) is moving.acts
    part = bus_part(moving, bare)
    assert isinstance(part, InTrunkExpert) and part.step is moving
    assert [bus_part(e, bare) for e in (labels, reader, plain)] == [labels, reader, plain]


def test_segments_go_from_the_lowest_tap_up_to_what_changes_h(bare, plain, v) -> None:
    experts = {
        "a": Inner(Adds(v, lowest=2), source="of a"),
        "b": Inner(Adds(v, lowest=0, rowwise=False), space="labels", source="of b"),
        "c": Inner(Stops(lowest=2), source="of c"),
        "d": Inner(Stops(lowest=1, key="block 0")),
        "e": Inner(Stops(lowest=1, key="block 0")),
        "f": Inner(Stops(lowest=2, rowwise=True), source="of f"),
        "plain": plain,
    }
    wide, D = with_layout(bare, experts), bare.width
    assert wide.layout is not None and wide.layout.width == D
    assert [
        (s.readers, s.key, s.width, s.normalised, s.moved, s.own_pass, s.instead)
        for s in wide.layout.segments
    ] == [
        (("d", "e"), "block 0", D, True, False, False, True),
        (("c",), "inside of c", D, True, False, False, True),
        (("f",), "inside of f", D, True, False, False, True),
        (("a",), "inside of a", D, False, True, True, True),
        (("b",), "inside of b", D, True, False, False, True),
    ]
    h = bare.encode(TEXTS)
    r = first_states(bare, TEXTS)
    torch.testing.assert_close(wide.encode(TEXTS), torch.cat([h, r, r, r, h + v, h + v], dim=1))


class Bringing(redhost.Expert):
    """An expert that reads a segment, which is computed of the texts, in addition to z."""

    def __init__(self, key: str) -> None:
        super().__init__(space="hidden", labels=("a",))
        self.key = key

    def segment(self, backbone: redhost.Backbone) -> FeatureSegment:
        return FeatureSegment(
            key=f"{self.key} of {backbone.name}",
            width=1,
            normalised=False,
            compute=lambda texts: torch.tensor([[float(len(t))] for t in texts]),
        )


def test_experts_that_bring_one_segment_share_it_before_those_inside(bare, plain, v) -> None:
    experts = {
        "a": Bringing("length"),
        "b": Inner(Adds(v), source="of b"),
        "c": Bringing("length"),
        "d": Bringing("other"),
        "plain": plain,
    }
    layout = with_layout(bare, experts).layout
    assert layout is not None
    assert [(s.key, s.readers) for s in layout.segments] == [
        (f"length of {bare.name}", ("a", "c")),
        (f"other of {bare.name}", ("d",)),
        ("inside of b", ("b",)),
    ]
    h, lengths = bare.encode(TEXTS), torch.tensor([[float(len(t))] for t in TEXTS])
    wide = with_layout(bare, {"a": experts["a"]}).encode(TEXTS)
    torch.testing.assert_close(wide, torch.cat([h, lengths], dim=1))


def test_a_unit_with_segments_of_its_own_has_them_first(bare, v) -> None:
    class WithContext(WholeText):
        def layout(self, width: int) -> FeatureLayout:
            context = FeatureSegment(
                key="context", width=width + 1, normalised=False, compute=None, readers=(ROUTER,)
            )
            return FeatureLayout(width=width, segments=(context,))

    task = dataclasses.replace(CLASSIFICATION, unit=WithContext())
    backbone = dataclasses.replace(bare, task=task)
    layout = with_layout(backbone, {}).layout
    assert layout is not None and [(s.key, s.width) for s in layout.segments] == [
        ("context", bare.width + 1)
    ]
    wide = with_layout(backbone, {"a": Inner(Adds(v), source="1")})
    assert wide.layout is not None
    assert [s.key for s in wide.layout.segments] == ["context", "inside 1"]
    # Nothing computes the unit's segment; the expert's stands in its place after it.
    rows = encode_chosen(wide, TEXTS, lambda h: torch.ones(len(h), 2, dtype=torch.bool))
    h = bare.encode(TEXTS)
    torch.testing.assert_close(rows, torch.cat([h, h.new_zeros(4, bare.width + 1), h + v], dim=1))
    assert with_layout(bare, {}) is bare


@pytest.mark.parametrize("rowwise", [True, False])
def test_only_what_acts_row_by_row_lets_texts_share_a_pass(bare, v, rowwise) -> None:
    alone = list[bool]()

    class Passes(WholeText):
        def passed(self, *arguments: Any, **options: Any) -> Tensor:
            alone.append(options["alone"])
            return super().passed(*arguments, **options)

    task = dataclasses.replace(CLASSIFICATION, unit=Passes())
    backbone = dataclasses.replace(bare, task=task)
    rows = with_layout(backbone, {"a": Inner(Adds(v, rowwise=rowwise))}).encode(TEXTS)
    torch.testing.assert_close(rows[:, bare.width :], bare.encode(TEXTS) + v)
    assert alone == [not rowwise]


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_what_one_expert_reads_of_texts_and_of_tokens(bare, plain, v, eps) -> None:
    backbone = dataclasses.replace(bare, eps=eps)
    h, r = bare.encode(TEXTS), first_states(bare, TEXTS)
    moving, labels, reader = Inner(Adds(v)), Inner(Adds(v), space="labels"), Inner(Stops())
    expected = {
        moving: v.expand(4, -1),
        labels: normalised(h + v, eps),
        reader: normalised(r, eps),
        plain: normalised(h, eps),
    }
    for expert, rows in expected.items():
        read = inside_reader(backbone, "it", expert)
        torch.testing.assert_close(read(TEXTS), rows, rtol=1e-4, atol=1e-5)
    ids = torch.tensor([bare.trunk.tokens(text) for text in ("red 1 a", "red 2 b")])
    h, r = bare.encode(["red 1 a", "red 2 b"]), first_states(bare, ["red 1 a", "red 2 b"])
    for expert, rows in {
        moving: v.expand(2, -1),
        labels: normalised(h + v, eps),
        reader: normalised(r, eps),
    }.items():
        torch.testing.assert_close(read_tokens(expert, backbone, ids), rows, rtol=1e-4, atol=1e-5)
    with pytest.raises(ContractError) as caught:
        read_tokens(plain, backbone, ids)
    wanted = "expected one that acts inside, found another"
    assert caught.value.problem and wanted in str(caught.value)


def test_each_row_has_the_segments_it_needs_in_as_few_passes(bare, v) -> None:
    """One kind of shared passes goes on together; another kind, and none, has its own."""
    log = list[tuple[str, int]]()
    experts = {
        "a": Inner(AddsTogether(v, log=log)),
        "b": Inner(AddsTogether(2 * v, log=log)),
        "c": Inner(AddsTogether(3 * v, kind="other", log=log)),
        "d": Inner(Adds(4 * v)),
        "e": Inner(Adds(5 * v, rowwise=False)),
    }
    wide = with_layout(bare, experts)
    texts = [f"red {n} a" for n in range(2 * TOGETHER + 2)]
    needs = torch.zeros(len(texts), 5, dtype=torch.bool)
    for s in range(5):
        needs[s : TOGETHER : s + 2, s] = True
    needs[-1, 3] = True
    sizes = list[int]()

    def choose(h: Tensor) -> Tensor:
        assert not h[:, bare.width :].any()
        start = sum(sizes)
        sizes.append(len(h))
        return needs[start : start + len(h)]

    rows = encode_chosen(wide, texts, choose)
    h = bare.encode(texts)
    segments = [needs[:, s, None] * (h + (s + 1) * v) for s in range(5)]
    torch.testing.assert_close(rows, torch.cat([h, *segments], dim=1))
    assert sizes == [TOGETHER, TOGETHER, 2]
    assert ("apart other", 0) in log and ("apart one", 0) not in log
    # Where no row of a batch needs one, no second pass is run.
    shared = int(needs[:, :2].sum())
    assert [entry for entry in log if entry != ("apart other", 0)] == [
        ("begin 2", TOGETHER),
        ("one", shared),
        ("begin 2", TOGETHER),
        ("begin 2", 2),
    ]


@pytest.mark.parametrize("surplus", [-1, 1])
def test_shared_passes_that_return_other_rows_than_texts_are_an_error(bare, v, surplus) -> None:
    class Miscounting(Together):
        def go_on(
            self, texts: Sequence[str], acts: Sequence[Any], begun: Sequence[Tensor]
        ) -> Tensor:
            rows = super().go_on(texts, acts, begun)
            return torch.cat([rows, rows])[: len(rows) + surplus]

    class Adder(AddsTogether):
        def shared_passes(self, encoder: TextEncoder) -> Together | None:
            return Miscounting(encoder, self.kind, self.log)

    wide = with_layout(bare, {"a": Inner(Adder(v))})
    with pytest.raises(ValueError, match="zip"):
        encode_chosen(wide, TEXTS, lambda h: torch.ones(len(h), 1, dtype=torch.bool))


@pytest.mark.parametrize("count", [0, 2 * TOGETHER])
def test_without_shared_passes_all_texts_are_chosen_for_at_once(bare, v, count) -> None:
    wide = with_layout(bare, {"a": Inner(Adds(v)), "b": Inner(Stops())})
    texts, sizes = [f"red {n} a" for n in range(count)], list[int]()

    def choose(h: Tensor) -> Tensor:
        sizes.append(len(h))
        return (torch.arange(len(h))[:, None] + torch.arange(2)) % 2 == 0

    rows = encode_chosen(wide, texts, choose)
    assert rows.shape == (count, 3 * bare.width) and sizes == [count] * (count > 0)
    assert torch.equal(rows[:, : bare.width], bare.encode(texts))
    _, read, moved = rows.chunk(3, dim=1)
    assert read[::2].any(-1).all() and not read[1::2].any()
    assert moved[1::2].any(-1).all() and not moved[::2].any()


class Refusing(WholeText):
    def refuses_inside(self, acts: Any) -> str | None:
        return "nothing inside" if acts.changes_h else None


def test_a_unit_of_rows_in_a_text_shares_no_passes(bare, v) -> None:
    class Words(WholeText):
        whole = False

    log = list[tuple[str, int]]()
    task = dataclasses.replace(CLASSIFICATION, unit=Words())
    backbone = dataclasses.replace(bare, task=task)
    wide = with_layout(backbone, {"a": Inner(AddsTogether(v, log=log))})
    rows = encode_chosen(wide, TEXTS, lambda h: torch.ones(len(h), 1, dtype=torch.bool))
    torch.testing.assert_close(rows[:, bare.width :], bare.encode(TEXTS) + v)
    assert {entry for entry, _ in log} == {"apart one"}


@pytest.mark.parametrize(
    ("acts", "space", "changes", "broken"),
    [
        (Stops(), "hidden", {}, None),
        (Adds(torch.ones(16)), "hidden", {}, None),
        (Adds(torch.ones(16)), "labels", {}, None),
        (Stops(), "logits", {}, None),
        (
            *(Adds(torch.ones(16)), "logits", {}),
            ("tap_order", "writes.space", "'hidden' or 'labels', since it changes h", "'logits'"),
        ),
        (
            *(None, "hidden", {}),
            ("form_unknown", "form", "an intervention in the blocks", "NoneType"),
        ),
        (
            *(Adds(torch.ones(16)), "hidden", {"unit": Refusing()}),
            ("tap_unknown", "form", "nothing inside", "one inside"),
        ),
        (Stops(), "hidden", {"unit": Refusing()}, None),
        (
            *(Stops(), "hidden", {"layers": (0, 3)}),
            ("tap_unknown", "form", "one that changes h, which is of layers", "a tap"),
        ),
        (Adds(torch.ones(16)), "hidden", {"layers": (0, 3)}, None),
    ],
)
def test_what_does_not_fit_the_trunk_is_a_violation(bare, acts, space, changes, broken) -> None:
    trunk, task = bare.trunk, CLASSIFICATION
    if "layers" in changes:
        trunk = TextEncoder(
            model=trunk.model,
            tokenizer=trunk.tokenizer,
            pooling="last",
            features=Features(layers=changes["layers"], tokens=0),
        )
    if "unit" in changes:
        task = dataclasses.replace(task, unit=changes["unit"])
    backbone = dataclasses.replace(bare, trunk=trunk, task=task)
    violation = check_inside(Inner(acts, space=space), backbone)
    if broken is None:
        assert violation is None
        return
    assert violation is not None
    assert (violation.code, violation.field, violation.expected, violation.found) == broken
    assert violation.hint == "Ask the author of the plugin that makes its form."


def test_an_expert_at_the_end_has_nothing_to_violate(bare, plain) -> None:
    assert check_inside(plain, bare) is None


@pytest.mark.parametrize(
    ("error", "code", "found"),
    [
        (ContractError("x", expected="a block 9", found="3"), "tap_unknown", "3"),
        (ZeroDivisionError(), "form_unknown", "ZeroDivisionError()"),
    ],
)
def test_what_an_author_raises_is_the_violation(bare, error, code, found) -> None:
    class Failing(Inner):
        def intervention(self, backbone: redhost.Backbone) -> Any:
            raise error

    violation = check_inside(Failing(None), bare)
    assert violation is not None
    assert (violation.code, violation.field, violation.found) == (code, "form", found)
