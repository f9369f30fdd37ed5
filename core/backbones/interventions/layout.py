"""Experts inside the trunk: their interventions, and their segments of h̃ on the bus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ....registry.errors import ContractError, RedhostError
from ....registry.package.checked import Violation, violations_in
from ...bus.bus import LayerNorm
from ...bus.experts import Expert, InTrunkExpert
from ...bus.layout import FeatureLayout, FeatureSegment, WideNorm
from ...bus.unit import Unit, WholeText
from ..backbone import Backbone
from ..encoder import TextEncoder
from . import Intervention, InTrunk, SharedPasses, SharesPasses, states_with

TOGETHER = 64
"""Texts whose states are stored at a time: T · D numbers for each text and starting block."""


def intervention_of(expert: Expert, backbone: Backbone) -> Intervention | None:
    """Return the intervention that an expert defines; None if it reads and writes at the end.

    Raises:
        ContractError: If it does not fit the trunk.
    """
    return expert.intervention(backbone) if isinstance(expert, InTrunk) else None


def bus_part(expert: Expert, backbone: Backbone) -> Expert:
    """Return an expert as it is on the bus: if it changes h in the trunk, it returns h' − h."""
    acts = intervention_of(expert, backbone)
    return InTrunkExpert(expert) if acts is not None and _moves(acts, expert) else expert


def _moves(acts: Intervention, expert: Expert) -> bool:
    """Return whether an expert's Δ is h' − h, rather than a function of the states it reads."""
    return acts.changes_h and expert.writes.states


@dataclass(frozen=True, kw_only=True, eq=False)
class Inside:
    """Texts → r or h' of their rows under an intervention, computed in a separate pass.

    Attributes:
        acts: The intervention.
        encoder: The encoder.
        unit: What a row is.
    """

    acts: Intervention
    encoder: TextEncoder
    unit: Unit[TextEncoder] = field(default_factory=WholeText)

    @property
    def shared(self) -> SharedPasses | None:
        """How its texts share passes with texts that have other interventions; None if not."""
        if not (self.unit.whole and isinstance(self.acts, SharesPasses)):
            return None
        return self.acts.shared_passes(self.encoder)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return r or h' ``(N, D)``."""

        def under(ids: Tensor) -> Tensor:
            return states_with(self.encoder, ids, self.acts)

        return self.unit.passed(self.encoder, texts, under, alone=not self.acts.rowwise)


def encode_chosen(
    backbone: Backbone, texts: Sequence[str], choose: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return h̃ ``(N, …)``; each intervention is run only for the rows that need its segment.

    If intervention and encoder support it, these rows continue from the states of the first pass,
    in shared passes (`SharedPasses`). Otherwise each segment has a separate pass.

    Args:
        backbone: A backbone with a layout.
        texts: N texts.
        choose: h̃ of h alone → which rows need each segment, ``(N, S)``.
    """
    layout, plain = backbone.layout, replace(backbone, layout=None)
    assert layout is not None  # noqa: S101  (without a layout no expert acts inside)
    makers = [s.compute for s in layout.segments]
    inside = {n: m for n, m in enumerate(makers) if isinstance(m, Inside) and m.shared}
    shared = next((m.shared for m in inside.values()), None)
    # Those of the first kind; other kinds have a pass of their own each, below.
    acts = {n: m.acts for n, m in inside.items() if m.shared == shared}
    # An empty part, so that no texts at all give a table of the right width. Only shared passes
    # hold states between two passes, which bounds how many texts go together.
    parts, size = [layout.pad(torch.empty(0, layout.width))], TOGETHER if acts else len(texts) or 1
    for start in range(0, len(texts), size):
        batch = [*texts[start : start + size]]
        h, states = shared.begin(batch, [*acts.values()]) if shared else (plain.encode(batch), [])
        wide = layout.pad(h)
        needs = choose(wide)
        # Views of `wide`: what is written to them stands in h̃.
        places = [numbers for _, numbers in layout.parts(wide)]
        pairs = [(n, s) for s in acts for n in needs[:, s].nonzero().flatten().tolist()]
        if shared and pairs:
            rows = shared.go_on(
                [batch[n] for n, _ in pairs],
                [acts[s] for _, s in pairs],
                [states[n] for n, _ in pairs],
            )
            for (n, s), row in zip(pairs, rows, strict=True):
                places[s][n] = row
        for s, make in enumerate(makers):
            index = [] if s in acts else needs[:, s].nonzero().flatten().tolist()
            if make is not None and index:
                places[s][index] = make([batch[n] for n in index])
        parts.append(wide)
    return torch.cat(parts)


def with_layout(backbone: Backbone, experts: Mapping[str, Expert]) -> Backbone:
    """Return the backbone that computes h̃ for experts by id; itself if all of them read h.

    h̃ has the segments that experts bring (`Expert.segment`), one for each block that is read, and
    one for each expert that changes h. If rows are not whole texts, the router reads the first
    segment. For text generation only adapters can act inside the trunk.

    Raises:
        ContractError: If the trunk has no such block.
    """
    unit = backbone.task.unit
    context = unit.layout(backbone.width).segments
    acting: dict[tuple[str, bool], tuple[Intervention, list[str]]] = {}
    for expert_id in sorted(experts):
        acts = intervention_of(experts[expert_id], backbone)
        if acts is not None:
            key = acts.key or expert_id, _moves(acts, experts[expert_id])
            # Experts with one key read one segment, which is computed once.
            acting.setdefault(key, (acts, []))[1].append(expert_id)
    brought: dict[str, tuple[FeatureSegment, list[str]]] = {}
    for expert_id in sorted(experts):
        if (segment := experts[expert_id].segment(backbone)) is not None:
            brought.setdefault(segment.key, (segment, []))[1].append(expert_id)
    if not acting and not context and not brought:
        return backbone
    segments = [replace(segment, readers=tuple(ids)) for segment, ids in brought.values()]
    segments += [
        FeatureSegment(
            # By the bytes of expert and plugin: rows of another build are never read from the
            # cache.
            key=acts.key or f"inside {experts[readers[0]].source}",
            width=backbone.width,
            normalised=not moved,
            instead=True,
            moved=moved,
            own_pass=acts.changes_h and acts.rowwise,
            compute=Inside(acts=acts, encoder=backbone.trunk, unit=unit),
            readers=tuple(readers),
        )
        for (_, moved), (acts, readers) in sorted(acting.items(), key=_place)
    ]
    layout = FeatureLayout(width=backbone.width, segments=(*context, *segments))
    return replace(backbone, layout=layout)


def _place(item: tuple[tuple[str, bool], tuple[Intervention, list[str]]]) -> tuple[bool, int]:
    """Return the sort key of a segment: taps from the lowest block on, then changes of h."""
    acts = item[1][0]
    return acts.changes_h, 0 if acts.changes_h else acts.lowest


def inside_reader(
    backbone: Backbone, expert_id: str, expert: Expert
) -> Callable[[Sequence[str]], Tensor]:
    """Return a function from texts to the input ``(N, D)`` of one expert on the bus."""
    wide = with_layout(backbone, {expert_id: expert})
    layout = wide.layout or FeatureLayout(width=backbone.width)
    norm = WideNorm(LayerNorm(width=backbone.width, eps=backbone.eps), layout)
    return lambda texts: layout.read(norm(wide.encode(texts)), expert_id)


def read_tokens(expert: Expert, backbone: Backbone, ids: Tensor) -> Tensor:
    """Return the bus input ``(N, D)`` of an expert inside the trunk, for token ids ``(N, T)``.

    It is computed in float32 independent of the trunk's precision, because it is compared with the
    author's canary.

    Raises:
        ContractError: If the expert does not fit the backbone, or does not act inside.
    """
    acts, trunk = intervention_of(expert, backbone), backbone.trunk
    if acts is None:
        raise ContractError("an expert", expected="one that acts inside", found="another")
    ids = ids.to(trunk.device)
    with trunk.in_float32(), torch.inference_mode():
        passes = trunk.hidden_states(ids), states_with(trunk, ids, acts)
        h, moved = (trunk.pool(states).float().cpu() for states in passes)
        if _moves(acts, expert):
            return moved - h
        z: Tensor = LayerNorm(width=backbone.width, eps=backbone.eps)(moved)
        return z


def check_inside(expert: Expert, backbone: Backbone) -> Violation | None:
    """Return the violation, if the intervention an expert defines does not fit this trunk."""
    if not isinstance(expert, InTrunk):
        return None
    code, field, expected, given = "form_unknown", "form", "an intervention in the blocks", ""
    try:
        acts = expert.intervention(backbone)
        if not isinstance(acts, Intervention):
            given = type(acts).__name__
        elif refused := backbone.task.unit.refuses_inside(acts):
            code, expected, given = "tap_unknown", refused, "one inside"
        elif backbone.trunk.features is not None and not acts.changes_h:
            code, expected, given = "tap_unknown", "one that changes h, which is of layers", "a tap"
        elif acts.changes_h and expert.writes.logits:
            code, field = "tap_order", "writes.space"
            expected, given = "'hidden' or 'labels', since it changes h", repr(expert.space)
    except RedhostError as e:
        return violations_in(e, code="tap_unknown", field=field)[0]
    except Exception as e:  # code of a plugin may raise errors of any type
        given = f"{e!r}"
    hint = "Ask the author of the plugin that makes its form."
    return Violation(code, field, expected, given, hint) if given else None
