"""Feature shards: h of many texts, computed by a worker pool before they are needed.

Any split into shards gives the same bits, because h is bitwise independent of the batch. Rows are
written to the feature cache as they arrive, so a stopped run resumes from there. States that
experts read inside the trunk (taps) are still computed where they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.encoder import BATCH
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.types import Progress
from redhost.registry.errors import IntegrityError
from redhost.registry.package.readers import BackboneFiles
from redhost_ray.job import Job, JobBatch, JobFiles
from redhost_ray.pool import WorkerPool, require_all

SHARD = 8 * BATCH
"""Texts of a job: enough to fill batches, few enough to distribute over workers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FeaturePrefetcher:
    """Encodes texts before they are needed.

    Attributes:
        pool: The worker pool.
    """

    pool: WorkerPool

    def encode(
        self,
        texts: Sequence[str],
        *,
        backbone: Backbone,
        files: BackboneFiles,
        folder: Path | None,
        progress: Progress | None = None,
    ) -> int:
        """Put h of texts into the feature cache; return the number of texts that were missing.

        Nothing is done if rows are words or tokens, because a text then has many states.

        Args:
            texts: Any texts, repeated or not.
            backbone: The backbone.
            files: Its package, from which workers load it.
            folder: The folder of the feature cache; with None nothing is done.
            progress: Called with (shards done, shards in all).

        Raises:
            JobsError: If a shard failed on every attempt.
        """
        if folder is None or not backbone.task.unit.whole:
            return 0  # a text has many states: they are computed where they are needed
        cache = FeatureCache(folder, backbone=backbone, fingerprint=files.manifest.fingerprint)
        missing = cache.missing(texts)
        if len(missing) <= SHARD:
            return 0  # starting a worker takes longer
        from redhost_ray.functions import (
            encode_texts,  # also imports training code, which few hosts need
        )

        jobs = JobBatch(threads=torch.get_num_threads())
        inputs = jobs.put("backbone", files.files)
        device = backbone.trunk.engine or backbone.device
        for start in range(0, len(missing), SHARD):
            shard = {"texts": missing[start : start + SHARD], "device": device}
            jobs.add(f"shard {start // SHARD}", encode_texts, shard, inputs)

        def remember(job: Job, made: JobFiles) -> None:
            _remember(cache, job.arguments["texts"], made["h.f32"], files.manifest.width)

        require_all(self.pool.run(jobs, remember, progress=progress), of=len(jobs.listed))
        return len(missing)


def _remember(cache: FeatureCache, texts: Sequence[str], data: bytes, width: int) -> None:
    rows = np.frombuffer(data, dtype="<f4")
    if rows.size != len(texts) * width:
        raise IntegrityError(
            "a shard is not what was requested",
            expected=f"{len(texts)} rows of width {width}",
            found=f"{rows.size} numbers",
        )
    cache.remember(texts, rows.reshape(len(texts), width))
