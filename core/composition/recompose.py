"""Recompose: retrain only the router over the experts that passed, and judge the outcome.

`recompose` is the sequence of steps; each step is a function below it. Nothing below the bus may
change: digests are compared before and after, and if any differs, nothing is composed (law 1).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import safetensors.torch

from ...registry.errors import CompositionError, FrozenError, UsageError, short
from ..backbones.interventions.layout import bus_part
from ..bus.bus import BACKBONE
from ..bus.signals import ANSWERS
from ..digests import tensor_digest
from ..model.build import build_model, make_norm, make_router
from ..model.composed import ComposedModel, answers_labels
from ..model.moments import Moments
from ..receipt import DigestChange, Receipt, RouterReceipt
from ..routers import KINDS
from ..routers.base import ColumnData, Router, load_router, router_tensors
from ..training.router import train_router
from ..training.router_data import column_names, columns_data
from ..types import Progress
from .choose import AUTO, TRIED, RouterChoice, choose_router
from .decline import decline_report
from .gates import judge_gates, refuse_bits, refuse_harm
from .options import RecomposeInputs, RecomposeOptions
from .prior import UNIFORM, expected_shares, written


@dataclass(frozen=True, kw_only=True, eq=False)
class RecomposeResult:
    """A composition that passed, not yet published."""

    composed: ComposedModel
    receipt: Receipt
    router_bytes: bytes


def recompose(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    *,
    weights: bytes | None = None,
    progress: Progress | None = None,
) -> RecomposeResult:
    """Train the router and judge the composition.

    Args:
        inputs: The parts.
        options: The options.
        weights: Router weights to use instead of training (``--locked``).
        progress: Called with (steps done, total steps) while the router trains.

    Raises:
        FrozenError: If the backbone or an expert has changed, even with ``accept``.
        HarmError: If a domain that was composed before loses more than the tolerance.
        CardError: If a router cannot be trained on a card.
        UsageError: If the router does not support the level.
    """
    timer = StepTimer()
    before = _digests(inputs)
    timer.mark("digests")
    model, router, choice = _untrained(inputs, options)
    options = replace(options, router=model.router_kind)
    timer.mark("choose")
    report, data = _set_router(
        router, model, inputs, options, choice, weights=weights, progress=progress, timer=timer
    )
    if options.decline:
        answers_labels(model, "whole texts")
    gates = judge_gates(inputs, model, data, decline=bool(options.decline))
    model = replace(model, calibration=gates.calibration, decline=options.decline or None)
    model = replace(model, moments=_moments(data))
    timer.mark("judge")
    after = _unmoved(before, _digests(inputs))
    timer.mark("digests")
    if not options.accept:
        refuse_harm(gates.accuracy, tolerance=options.tolerance)
        if gates.bits is not None:
            refuse_bits(gates.bits, tolerance=options.tolerance)
    candidates = inputs.candidates
    receipt = Receipt(
        generation=None,
        parent=inputs.previous.generation if inputs.previous else None,
        router=report,
        backbone=DigestChange(before=before[""], after=after[""]),
        experts={i: DigestChange(before=before[i], after=after[i]) for i in candidates.experts},
        left_out=candidates.rejected,
        withdrawn=candidates.withdrawn,
        not_gated=tuple(i for i in candidates.experts if i not in gates.accuracy.after),
        accuracy=gates.accuracy,
        seconds=sum(timer.steps.values()),
        seed=options.seed,
        health=gates.health,
        bits=gates.bits,
        decline=decline_report(model),
        steps=timer.steps,
        ported=_ported(inputs),
        ranks={i: e.files.rank for i, e in candidates.experts.items() if e.files.rank},
    )
    saved = safetensors.torch.save(router_tensors(router))
    return RecomposeResult(composed=model, receipt=receipt, router_bytes=saved)


def _moments(data: Sequence[ColumnData]) -> Moments:
    """Return the moments of the data on the experts' cards."""
    return Moments.of_columns([d for d in data if d.column != BACKBONE])


def _ported(inputs: RecomposeInputs) -> dict[str, str]:
    """Return the digest of the author's build of each expert that was ported, by id."""
    origins = {i: e.files.manifest.ported for i, e in inputs.candidates.experts.items()}
    return {i: origin.digest for i, origin in origins.items() if origin}


def _untrained(
    inputs: RecomposeInputs, options: RecomposeOptions
) -> tuple[ComposedModel, Router, RouterChoice | None]:
    """Put all parts on a bus, under a router whose weights are not set yet.

    Returns:
        The model, its router, and how the router's kind was chosen if none was given by name.
    """
    if options.router != AUTO:
        return *_under_router(inputs, options, options.router), None
    previous = inputs.previous
    if options.level == "row" and previous is not None:  # the other columns stay unchanged
        return *_under_router(inputs, options, previous.router_kind), None
    model, _ = _under_router(inputs, options, TRIED[-1])
    choice = choose_router(model, encode=inputs.encode)
    return *_under_router(inputs, options, choice.kind), choice


def _under_router(
    inputs: RecomposeInputs, options: RecomposeOptions, kind: str
) -> tuple[ComposedModel, Router]:
    """Put all parts on a bus, under an untrained router of a kind."""
    experts, bus = inputs.candidates.experts, inputs.backbone.bus_config()
    columns = column_names(
        experts,
        inputs.background,
        backbone_column=BACKBONE if options.backbone_column else None,
    )
    router = make_router(
        kind,
        bus=bus,
        columns=columns,
        seed=options.seed,
        plugins=inputs.plugins,
        providers=inputs.providers,
    )
    model = build_model(
        inputs.backbone,
        norm=make_norm(bus=bus, plugins=inputs.plugins, providers=inputs.providers),
        router=router,
        experts={i: bus_part(e.expert, inputs.backbone) for i, e in experts.items()},
        columns=columns,
        cards={i: e.card for i, e in experts.items()},
        background=inputs.background,
        evaluation=inputs.evaluation,
        fingerprint=inputs.files.manifest.fingerprint,
        router_kind=kind,
        seed=options.seed,
    )
    return model, router


def _set_router(
    router: Router,
    model: ComposedModel,
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    choice: RouterChoice | None,
    *,
    weights: bytes | None,
    progress: Progress | None,
    timer: StepTimer,
) -> tuple[RouterReceipt, Sequence[ColumnData]]:
    """Set the router's weights, trained at a level or given; return also the cards' data."""
    moved = tuple[str, ...]()
    reads = router.reads if weights is None else router.reads - {ANSWERS}
    data = choice.data if choice else None
    data = data or columns_data(model, encode=inputs.encode, reads=reads)
    timer.mark("learn")
    if weights is None:
        moved = _train(inputs, options, router, data, progress=progress)
    else:
        load_router(router, safetensors.torch.load(weights))
    shares, prior = _expect(router, data, inputs, options, locked=weights is not None)
    timer.mark("train")
    tensors = router_tensors(router)
    if not all(bool(t.isfinite().all()) for t in tensors.values()):
        raise CompositionError(
            f"a {options.router!r} router cannot be made of these cards",
            expected="finite weights",
            found="NaN or infinity",
        )
    report = RouterReceipt(
        kind=options.router,
        level=options.level,
        seconds=timer.steps["train"],
        rows=sum(len(d.z) for d in data),
        digest=tensor_digest(tensors),
        columns=model.bus.columns,
        moved=moved,
        robust=router.minimax_report,
        tried=dict(choice.tried) if choice else {},
        shares=shares,
        prior=prior,
    )
    return report, data


def _expect(
    router: Router,
    data: Sequence[ColumnData],
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    *,
    locked: bool,
) -> tuple[dict[str, float], str | None]:
    """Set the router's prior to the expected shares; return the shares and the prior."""
    learnt, columns = router.learnt_shares(data), tuple(d.column for d in data)
    before = (*inputs.record.router.columns, *inputs.record.members()) if inputs.record else ()
    q = expected_shares(options.prior, columns, learnt, known=before)
    shares = dict(zip(columns, q.tolist(), strict=True))
    if options.prior is None:
        return shares, None
    if not locked:  # written shares are rounded, while a lock holds every bit
        router.log_prior = (q / learnt).log().float()
    return shares, options.prior if options.prior == UNIFORM or locked else written(shares)


def _train(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    router: Router,
    data: Sequence[ColumnData],
    *,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Train at the level asked for; return the columns that were trained."""
    columns = tuple(d.column for d in data)
    only = None
    if options.level == "zero" and not router.closed_form:
        raise UsageError(
            f"a {options.router!r} router has no level 'zero'",
            expected="one with a closed form: " + ", ".join(k.kind for k in KINDS if k.closed_form),
            found=options.router,
            hint="Use --level full, or --router statistics.",
        )
    if options.level == "row":
        only = _copy_unchanged(inputs, options, router, columns)
    train_router(
        router, data, columns=columns, settings=options.settings, only=only, progress=progress
    )
    return columns if only is None else only


def _copy_unchanged(
    inputs: RecomposeInputs, options: RecomposeOptions, router: Router, columns: tuple[str, ...]
) -> tuple[str, ...]:
    """Copy the unchanged columns of the parent's router; return the new or replaced columns."""
    previous = inputs.previous
    parent = previous.bus.router if previous else None
    if (
        previous is None
        or not isinstance(parent, Router)
        or previous.router_kind != options.router
        or previous.fingerprint != inputs.files.manifest.fingerprint
    ):
        raise UsageError(
            "level 'row' moves single columns of the current generation's router",
            expected=f"a current generation with a {options.router!r} router on this backbone",
            found="none" if previous is None else f"a {previous.router_kind!r} router",
            hint="Use --level full.",
        )
    before = {m.id: (m.digest, m.rank) for m in inputs.record.experts} if inputs.record else {}
    served = {i: (e.files.digest, e.files.rank) for i, e in inputs.candidates.experts.items()}
    same = {i for i, what in served.items() if before.get(i) == what} | {BACKBONE}
    keep = same & set(columns) & set(parent.columns)
    router.copy_columns(parent, keep=keep)
    return tuple(c for c in columns if c not in keep)


def _digests(inputs: RecomposeInputs) -> dict[str, str]:
    """Return the digests of the backbone (under the empty name) and of every expert's tensors."""
    experts = inputs.candidates.experts
    digests = {i: tensor_digest(e.expert.state_dict()) for i, e in experts.items()}
    return {"": inputs.backbone.fingerprint(), **digests}


def _unmoved(before: Mapping[str, str], after: Mapping[str, str]) -> Mapping[str, str]:
    """Return the digests after; refuse the composition if a frozen part has changed (law 1).

    Raises:
        FrozenError: If a digest differs.
    """
    moved = [i for i, digest in before.items() if after[i] != digest]
    if moved:
        names = ["the backbone" if not i else f"expert {i!r}" for i in moved]
        raise FrozenError(
            f"frozen weights moved while the router was trained: {', '.join(names)}",
            expected=short(before[moved[0]]),
            found=short(after[moved[0]]),
            hint="Nothing was published. Tell the author of the plugin that made the router.",
        )
    return after


@dataclass
class StepTimer:
    """Measures seconds by step; if a step is repeated, its times are added.

    Attributes:
        steps: Seconds by the step's name, in the order in which they first ended.
    """

    steps: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def mark(self, step: str) -> None:
        """End a step: the time since the previous step's end is counted as its own."""
        now = time.perf_counter()
        self.steps[step] = self.steps.get(step, 0.0) + now - self._since
        self._since = now
