"""Train: all parts are put on a bus, and the router's weights are set; nothing else learns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import safetensors.torch

from ...registry.errors import CompositionError, UsageError
from ..bus.bus import BACKBONE
from ..bus.signals import ANSWERS
from ..digests import tensor_digest
from ..model.build import build_bus, make_combiner, make_norm, make_router
from ..model.composed import ComposedModel
from ..receipt import RouterReceipt
from ..routers import KINDS
from ..routers.base import ColumnData, Router, load_router, router_tensors
from ..training.router import train_router
from ..training.router_data import column_names, columns_data
from ..types import Progress
from .choose import AUTO, TRIED, RouterChoice, choose_router
from .options import RecomposeOptions
from .prepare import RecomposeInputs
from .prior import UNIFORM, expected_shares, written


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
    data = (choice.data if choice else None) or columns_data(
        model, encode=inputs.encode, reads=reads
    )
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
            hint="Choose another --router; this one is of "
            f"{type(router).__module__.partition('.')[0]!r}.",
        )
    return Trained(
        model=model,
        router=router,
        report=RouterReceipt(
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
        ),
        data=data,
    )


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
    record = inputs.previous.record
    before = (*record.router.columns, *record.members()) if record else ()
    q = expected_shares(options.prior, columns, learnt, departed=before)
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
    if options.level == "zero" and not router.closed_form:
        raise UsageError(
            f"a {options.router!r} router has no level 'zero'",
            expected="one with a closed form: " + ", ".join(k.kind for k in KINDS if k.closed_form),
            found=options.router,
            hint="Use --level full, or --router statistics.",
        )
    row = options.level == "row"
    only = _copy_unchanged(inputs, options, router, columns) if row else None
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
    record = inputs.previous.record
    before = record.members() if record else {}
    digests = {i: e.files.digest for i, e in inputs.candidates.experts.items()}
    # By digest: the column of a new build has to be trained again.
    unchanged = {i for i, digest in digests.items() if before.get(i) == digest} | {BACKBONE}
    keep = unchanged & set(columns) & set(parent.columns)
    router.copy_columns(parent, keep=keep)
    return tuple(c for c in columns if c not in keep)
