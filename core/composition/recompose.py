"""Recompose: the parts that were loaded are trained and judged; what passes can be published.

`attempt` is the sequence; nothing below the bus may change: digests are compared before and after,
and if any differs, nothing is composed (law 1).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import safetensors.torch

from ...registry.errors import CompositionError, FrozenError, UsageError, short
from ..bus.bus import BACKBONE
from ..bus.signals import ANSWERS
from ..digests import tensor_digest
from ..model.build import build_bus, make_combiner, make_norm, make_router
from ..model.composed import ComposedModel
from ..model.conformal import rows_needed, too_few
from ..model.moments import Moments
from ..receipt import Decline, DigestChange, Receipt, RouterReceipt
from ..routers import KINDS
from ..routers.base import ColumnData, Router, load_router, router_tensors
from ..training.router import train_router
from ..training.router_data import column_names, columns_data
from ..types import Progress
from .choose import AUTO, TRIED, RouterChoice, choose_router
from .gates import Gates, judge_composition
from .options import RecomposeInputs, RecomposeOptions
from .prior import UNIFORM, expected_shares, written
from .refusal import Refusal, accepted


@dataclass(frozen=True, kw_only=True, eq=False)
class RecomposeResult:
    """A composition that passed, not yet published.

    Attributes:
        inputs: The parts that it was made from.
        composed: The composition.
        receipt: Its receipt.
        router_bytes: Its router's weights.
    """

    inputs: RecomposeInputs
    composed: ComposedModel
    receipt: Receipt
    router_bytes: bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """All parts under a router whose weights are set, not yet judged.

    Attributes:
        model: The parts.
        router: The router.
        report: How the router was made.
        data: The data of the cards, by column.
    """

    model: ComposedModel
    router: Router
    report: RouterReceipt
    data: Sequence[ColumnData]


def recompose(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    *,
    weights: bytes | None = None,
    progress: Progress | None = None,
) -> RecomposeResult:
    """Train the router and judge the composition, as `attempt` does.

    Raises:
        HarmError: If a domain that was composed before loses more than the tolerance.
        RedhostError: As for `attempt`.
    """
    return accepted(attempt(inputs, options, weights=weights, progress=progress))


def attempt(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    *,
    weights: bytes | None = None,
    progress: Progress | None = None,
) -> RecomposeResult | Refusal:
    """Train the router and judge the composition.

    Args:
        inputs: The parts.
        options: The options.
        weights: Router weights to use instead of training (``--locked``).
        progress: Called with (steps done, total steps) while the router trains.

    Returns:
        The composition; a refusal, if a domain that was composed before loses more than the
        tolerance, or an expert drowns out the others.

    Raises:
        FrozenError: If the backbone or an expert has changed, even with ``accept``.
        CardError: If a router cannot be trained on a card.
        UsageError: If the router does not support the level.
    """
    timer = StepTimer()
    before = _digests(inputs)
    timer.mark("digests")
    trained = train(inputs, options, timer=timer, weights=weights, progress=progress)
    gates = judge_composition(inputs, options, trained.model, trained.data)
    timer.mark("judge")
    # Computed again from the tensors in memory: a plugin's router may have reached them.
    after = _unmoved(before, _digests(inputs))
    timer.mark("digests")
    if isinstance(gates, Refusal):
        return gates
    model = replace(
        trained.model,
        calibration=gates.calibration,
        decline=options.decline or None,
        moments=Moments.of_columns([d for d in trained.data if d.column != BACKBONE]),
    )
    weighed = {i: DigestChange(before=x, after=after[i]) for i, x in before.items()}
    receipt = _receipt(inputs, options, replace(trained, model=model), gates, weighed, timer.steps)
    return RecomposeResult(
        inputs=inputs,
        composed=model,
        receipt=receipt,
        router_bytes=safetensors.torch.save(router_tensors(trained.router)),
    )


def train(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    *,
    timer: StepTimer,
    weights: bytes | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Put all parts on a bus and set the router's weights, trained at a level or given.

    Args:
        inputs: The parts.
        options: The options.
        timer: Measures the steps ``choose``, ``learn`` and ``train``.
        weights: Router weights to use instead of training (``--locked``).
        progress: Called with (steps done, total steps) while the router trains.

    Raises:
        CardError: If a router cannot be trained on a card.
        CompositionError: If the weights are not finite.
        UsageError: If the router does not support the level.
    """
    model, router, choice = _untrained(inputs, options)
    options = replace(options, router=model.router_kind)
    timer.mark("choose")
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
    # Before any gate row is judged: NaN would compare as neither better nor worse.
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
    return Trained(model=model, router=router, report=report, data=data)


def _untrained(
    inputs: RecomposeInputs, options: RecomposeOptions
) -> tuple[ComposedModel, Router, RouterChoice | None]:
    """Put all parts on a bus, under a router whose weights are not set yet.

    Returns:
        The model, its router, and how the router's kind was chosen if none was given by name.
    """
    if options.router != AUTO:
        return *_under_router(inputs, options, options.router), None
    previous = inputs.previous.model
    if options.level == "row" and previous is not None:  # the other columns stay unchanged
        return *_under_router(inputs, options, previous.router_kind), None
    # Any kind will do: the choice needs the columns and what they read, not the weights.
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
    model = ComposedModel(
        backbone=inputs.backbone,
        bus=build_bus(
            inputs.backbone,
            norm=make_norm(bus=bus, plugins=inputs.plugins, providers=inputs.providers),
            router=router,
            experts={i: e.expert for i, e in experts.items()},
            columns=columns,
            combiner=make_combiner(bus=bus, plugins=inputs.plugins, providers=inputs.providers),
        ),
        cards={i: e.card for i, e in experts.items()},
        background=inputs.background,
        evaluation=inputs.evaluation,
        fingerprint=inputs.files.manifest.fingerprint,
        router_kind=kind,
        seed=options.seed,
        digests={i: e.files.digest for i, e in experts.items()},
    )
    return model, router


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
    before = (
        (*inputs.previous.record.router.columns, *inputs.previous.record.members())
        if inputs.previous.record
        else ()
    )
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
    previous = inputs.previous.model
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
    before = inputs.previous.record.members() if inputs.previous.record else {}
    experts = inputs.candidates.experts
    # By digest: the column of a new build has to be trained again.
    same = {i for i, e in experts.items() if before.get(i) == e.files.digest} | {BACKBONE}
    keep = same & set(columns) & set(parent.columns)
    router.copy_columns(parent, keep=keep)
    return tuple(c for c in columns if c not in keep)


def _receipt(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    trained: Trained,
    gates: Gates,
    digests: Mapping[str, DigestChange],
    steps: dict[str, float],
) -> Receipt:
    """Return the receipt of a composition, not yet published."""
    candidates = inputs.candidates
    origins = {i: e.files.manifest.ported for i, e in candidates.experts.items()}
    return Receipt(
        generation=None,
        parent=inputs.previous.model.generation if inputs.previous.model else None,
        router=trained.report,
        backbone=digests[""],
        experts={i: digests[i] for i in candidates.experts},
        left_out=candidates.left_out,
        withdrawn=candidates.withdrawn,
        not_gated=tuple(i for i in candidates.experts if i not in gates.accuracy.after),
        accuracy=gates.accuracy,
        seconds=sum(steps.values()),
        seed=options.seed,
        health=gates.health,
        bits=gates.bits,
        decline=_decline(trained.model),
        steps=steps,
        ported={i: origin.digest for i, origin in origins.items() if origin},
    )


def _decline(model: ComposedModel) -> Decline | None:
    """Return which texts a composition declines; None if no share was given."""
    share, known, ids = model.decline, model.calibration, model.bus.ids
    if share is None:
        return None
    t = model.decline_thresholds
    numbers = [-math.inf] * len(ids) if t is None else t.tolist()
    thresholds = {i: None if x == -math.inf else x for i, x in zip(ids, numbers, strict=True)}
    rows = dict.fromkeys(ids, 0) if known is None else known.rows(ids)
    return Decline(
        share=share,
        rows=rows,
        thresholds=thresholds,
        needed=rows_needed(share),
        warnings=too_few(rows, share),
    )


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
