"""Sweeps: router kinds trained from several seeds over the same experts, as jobs of a worker pool.

A sweep compares routers for the composed experts; nothing is published. Features are computed once
for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import torch
from msgspec.structs import replace

from redhost.core.evaluation.evaluate import Evaluation
from redhost.core.model.build import ROUTERS, Providers, make_router
from redhost.core.model.composed import ComposedModel
from redhost.core.plugins.hooks import PLUGIN_ROUTERS, extra_of
from redhost.core.plugins.manager import Plugins
from redhost.core.session import Session
from redhost.core.types import Progress, Row, write_rows
from redhost.registry.errors import PluginError, UnknownNameError, UsageError
from redhost.registry.home.composition import Composition
from redhost_ray.cache import JobCache
from redhost_ray.functions import evaluate_router
from redhost_ray.job import Job, JobBatch, JobFiles
from redhost_ray.pool import LOCAL, WorkerPool, choose_pool


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one router of a sweep.

    Attributes:
        router: Its kind, with options.
        seed: Its random seed.
        error: Why there is no evaluation; None if there is one.
        evaluation: Its evaluation.
    """

    router: str
    seed: int
    error: str | None = None
    evaluation: Evaluation | None = None


def sweep(
    session: Session,
    *,
    routers: Sequence[str],
    pool: WorkerPool | None = None,
    seeds: Sequence[int] = (0,),
    rows: Sequence[Row] | None = None,
    cache: JobCache | None = None,
    progress: Progress | None = None,
) -> list[SweepResult]:
    """Train routers over the current generation's experts, in memory, and evaluate each.

    Args:
        session: The session whose current generation is used.
        routers: Router kinds, with options.
        pool: The worker pool; by default one local worker.
        seeds: Random seeds; each kind is trained from each seed.
        rows: Labelled rows; by default the backbone's own held-out rows.
        cache: The cache of finished evaluations, which are not computed again.
        progress: Called with (routers done, routers in all).

    Returns:
        A result for each kind and seed, in order.

    Raises:
        MissingError: If no rows are given and the backbone ships none.
        UnknownNameError: If a kind is neither built in nor of a plugin of this project.
        UsageError: If the backbone's task is spans or text generation.
        PluginError: If a plugin of others made a part of the generation: workers make built-in
            parts, and those of this project's plugins. Or if a kind's plugin is not installed.
    """
    composed = session.loader.load(session.require_current())
    if not composed.backbone.task.unit.whole:
        raise UsageError(
            "a sweep compares routers of backbones that answer labels or numbers",
            found=f"backbone {composed.backbone.name!r}, which {composed.bus.task.unit.does}",
            hint="Try a router with 'redhost recompose --dry-run --router KIND'.",
        )
    chosen = composed.evaluation_rows(rows)
    makers = {r: _makers(r, router_plugins(session.plugins), composed) for r in routers}
    jobs = JobBatch(threads=torch.get_num_threads())
    record = session.generations.load(composed.generation or 0)
    inputs = _inputs(session, record, composed, chosen, jobs)
    columns = list(composed.bus.columns)
    results: dict[str, SweepResult] = {}
    for router, seed in itertools.product(routers, seeds):
        plugins = record.providers | makers[router]
        arguments = {"router": router, "seed": seed, "columns": columns, "plugins": plugins}
        job = jobs.add(f"router {router!r} from seed {seed}", evaluate_router, arguments, inputs)
        results[job.name] = SweepResult(router=router, seed=seed)

    def on_result(job: Job, files: JobFiles) -> None:
        evaluation = msgspec.json.decode(files["evaluation.json"], type=Evaluation)
        results[job.name] = replace(results[job.name], evaluation=evaluation)

    pool = pool or choose_pool(session.plugins, engine=LOCAL, workers=1)
    for failure in pool.run(jobs, on_result, cache=cache, progress=progress):
        name = failure.job.name
        results[name] = replace(results[name], error=failure.reason)
    return [results[job.name] for job in jobs.listed]


def router_plugins(plugins: Plugins) -> Plugins:
    """Return those of this project's plugins that make routers: workers know no others."""
    makers: Providers = {}
    for kind in plugins.names(ROUTERS):
        makers |= plugins.providers(ROUTERS, kind)
    return plugins.only({dist: digest for dist, digest in makers.items() if extra_of(dist)})


def _makers(router: str, plugins: Plugins, composed: ComposedModel) -> Providers:
    """Return the plugin that makes a kind, if one does; refuse it before anything is computed."""
    kind, known, makers = router.partition(":")[0], plugins.names(ROUTERS), Providers()
    if kind not in (*known, *PLUGIN_ROUTERS):
        raise UnknownNameError("built-in router", kind, known)
    make_router(
        router,
        bus=composed.backbone.bus_config(),
        columns=composed.bus.columns,
        seed=0,
        plugins=plugins,
        providers=makers,
    )
    return makers


def _inputs(
    session: Session,
    record: Composition,
    composed: ComposedModel,
    rows: Sequence[Row],
    jobs: JobBatch,
) -> dict[str, str]:
    """Store the inputs that all jobs share: bytes from the store, and features."""
    if others := [dist for dist in record.providers if extra_of(dist) is None]:
        raise PluginError(
            f"plugin {min(others)!r} made a part of generation {record.number}",
            expected="built-in parts, which any worker can make",
            hint="Compare routers with 'redhost evaluate --mixtures', in this process.",
        )
    backbone = session.store.backbone(record.backbone.digest, name=record.backbone.id)
    inputs = jobs.put("backbone", backbone.files)
    for member in record.experts:
        expert = session.store.expert(member.digest, name=member.id)
        inputs |= jobs.put(f"experts/{member.id}", expert.files)
    cards = [r.text for card in composed.cards.values() for r in card.rows]
    own = [r.text for r in rows]
    texts = list(dict.fromkeys([*cards, *(r.text for r in composed.background), *own]))
    session.prefetch(composed, own)
    h = session.encoder(composed)(texts)
    features = {
        "texts.json": msgspec.json.encode(texts),
        "h.f32": h.numpy().astype("<f4").tobytes(),
    }
    return inputs | jobs.put("features", features) | jobs.put("rows", {"data": write_rows(rows)})
