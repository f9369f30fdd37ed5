"""Sweeps: every router kind from several seeds over the same experts, trained and judged by a crew.

Nothing is published: a sweep answers which router suits what is composed. Features are computed
once, for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import torch

from ...registry.errors import PluginError, UnknownNameError, UsageError
from ...registry.files import read_backbone, read_expert
from ..extending.assemble import sound
from ..measuring.evaluate import Evaluation
from ..progress import Progress
from ..routers import KINDS, build_router
from ..rows import Row, write_rows
from .crew import LOCAL, choose_crew
from .engine import Files, Job, Jobs
from .kept import Kept

if TYPE_CHECKING:
    from ..answering.composed import Composed
    from ..host import Host

__all__ = ["Swept", "sweep"]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """One router of a sweep.

    Attributes:
        router: Its kind, with options.
        seed: Where its randomness came from.
        error: Why there is no evaluation; None if there is one.
        evaluation: What it is worth.
    """

    router: str
    seed: int
    error: str | None = None
    evaluation: Evaluation | None = None


def sweep(
    host: Host,
    *,
    routers: Sequence[str],
    seeds: Sequence[int] = (0,),
    rows: Sequence[Row] | None = None,
    kept: Kept | None = None,
    progress: Progress | None = None,
) -> list[Swept]:
    """Train routers over the current generation's experts, in memory, and evaluate each.

    Args:
        host: Whose generation, and whose crew.
        routers: Router kinds, with options.
        seeds: Each kind is trained from each.
        rows: Labelled rows; by default the backbone's own held-out rows.
        kept: Where finished evaluations lie: what is there is not computed again.
        progress: Called with (routers done, routers in all).

    Returns:
        One for each kind and seed, in their order.

    Raises:
        MissingError: If no rows are given and the backbone ships none.
        UnknownNameError: If a kind is none of the built-in ones.
        UsageError: If the backbone generates text.
        PluginError: If a plugin made a part of the generation: workers make built-in parts.
    """
    composed = host.composed
    if composed.backbone.generates:
        raise UsageError(
            "a sweep compares routers of backbones that answer labels or numbers",
            found=f"backbone {composed.backbone.name!r}, which generates text",
            hint="Try a router with 'redhost recompose --dry-run --router KIND'.",
        )
    chosen = composed.judged_on(rows)
    _require_known(routers, composed)
    jobs = Jobs(threads=torch.get_num_threads())
    inputs = _inputs(host, composed, chosen, jobs)
    made: dict[str, Swept] = {}
    for router, seed in itertools.product(routers, seeds):
        arguments = {"router": router, "seed": seed, "columns": list(composed.bus.columns)}
        jobs.add(f"router {router!r} from seed {seed}", "evaluate-router", arguments, inputs)

    def take(job: Job, files: Files) -> None:
        found = msgspec.json.decode(files["evaluation.json"], type=Evaluation)
        told = job.arguments
        made[job.name] = Swept(router=told["router"], seed=told["seed"], evaluation=found)

    crew = host.crew or choose_crew(host.plugins, engine=LOCAL, workers=1)
    for failure in crew.run(jobs, take, kept=kept, progress=progress):
        told = failure.job.arguments
        made[failure.job.name] = Swept(
            router=told["router"], seed=told["seed"], error=failure.reason
        )
    return [made[job.name] for job in jobs.listed]


def _require_known(routers: Sequence[str], composed: Composed) -> None:
    """Refuse a kind before anything is computed."""
    for router in routers:
        if build_router(router, composed.backbone.bus_config(), composed.bus.columns, 0) is None:
            kind = router.partition(":")[0]
            raise UnknownNameError("built-in router", kind, [k.kind for k in KINDS])


def _inputs(host: Host, composed: Composed, rows: Sequence[Row], jobs: Jobs) -> dict[str, str]:
    """Put everything on the table that every job reads: bytes from the store, and features."""
    record = host.generations.load(composed.generation or 0)
    if record.providers:
        raise PluginError(
            f"plugin {min(record.providers)!r} made a part of generation {record.number}",
            expected="built-in parts, which any worker can make",
            hint="Compare routers with 'redhost evaluate --mixtures', in this process.",
        )
    told = record.backbone
    files = sound(read_backbone(host.store.get(told.digest)), told.id, digest=told.digest)
    inputs = jobs.put("backbone", files.files)
    for member in record.experts:
        expert = sound(read_expert(host.store.get(member.digest)), member.id, digest=member.digest)
        inputs |= jobs.put(f"experts/{member.id}", expert.files)
    cards = [r.text for card in composed.cards.values() for r in card.rows]
    asked = [r.text for r in rows]
    texts = list(dict.fromkeys([*cards, *(r.text for r in composed.background), *asked]))
    host.encode_ahead(composed, asked)
    h = host.encoder(composed)(texts)
    features = {
        "texts.json": msgspec.json.encode(texts),
        "h.f32": h.numpy().astype("<f4").tobytes(),
    }
    return inputs | jobs.put("features", features) | jobs.put("rows", {"data": write_rows(rows)})
