"""Workers of one command: they compute features ahead of time, and verify experts.

The host asks for them by `open_workers` where ``--engine`` or ``--workers`` is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redhost.core.plugins.manager import Plugins
from redhost.core.session import ToVerify
from redhost.core.types import Progress
from redhost.registry.home.questions import cache_of
from redhost.registry.package.checked import Violation
from redhost.registry.queries.settings import resolve_home
from redhost_ray.cache import JobCache
from redhost_ray.pool import choose_pool
from redhost_ray.prefetch import FeaturePrefetcher
from redhost_ray.verify_many import VerificationTask, verify_many

__all__ = ["Workers", "job_cache", "open_workers"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workers(FeaturePrefetcher):
    """A pool of workers, as the host uses it."""

    def verify(
        self, experts: Sequence[ToVerify], *, home: Path | None, progress: Progress | None = None
    ) -> list[tuple[Violation, ...]]:
        """Verify experts that passed every static check; return the violations of each, in order.

        Args:
            experts: Name, files, and the files of the backbone that each fits, if there is one.
            home: The home, whose cache of finished jobs is used.
            progress: Called with (experts done, experts in all).

        Raises:
            JobsError: If a verification failed on every attempt and has no result.
        """
        tasks = [VerificationTask(name=n, files=f, backbone=b) for n, f, b in experts]
        return verify_many(tasks, pool=self.pool, cache=job_cache(home), progress=progress)


def open_workers(engine: str, workers: int, plugins: Plugins | None = None) -> Workers:
    """Return workers on an engine.

    Args:
        engine: The engine's name: ``local``, or that of an engine of a trusted plugin.
        workers: Number of parallel workers.
        plugins: The plugins to use; by default those of the environment.

    Raises:
        UsageError: If no such engine exists; the message lists the known ones.
    """
    plugins = Plugins() if plugins is None else plugins
    return Workers(pool=choose_pool(plugins, engine=engine, workers=workers))


def job_cache(home: Path | None) -> JobCache:
    """Return the cache of finished jobs in a home."""
    return JobCache(cache_of(resolve_home(home)) / "jobs")
