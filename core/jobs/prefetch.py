"""Feature shards: h of many texts, computed by a worker pool before they are needed.

Any split into shards gives the same bits, because a text's bits are its own.
Rows go into the feature cache as they come, so a run that was stopped goes on from there. What
experts read inside the trunk (taps) is still computed where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...registry.errors import IntegrityError
from ...registry.package.readers import BackboneFiles
from ..backbones.backbone import Backbone
from ..backbones.encoder import BATCH
from ..backbones.feature_cache import FeatureCache
from ..bus.tasks import Unit
from ..types import Progress
from .job import Job, JobBatch, JobFiles
from .pool import WorkerPool, require_all

SHARD = 8 * BATCH
"""Texts of a job: enough to fill batches, few enough to share out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FeaturePrefetcher:
    """Encodes texts before they are needed.

    Attributes:
        pool: What computes them.
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
        """Put h of texts into the feature cache; return how many it lacked.

        Not of a backbone that generates, whose texts have a row for each token.

        Args:
            texts: Any texts, repeated or not.
            backbone: The backbone.
            files: Its package, which workers make it from.
            folder: Where features are cached; without one there is nothing to do.
            progress: Called with (shards done, shards in all).

        Raises:
            JobsError: If a shard failed on every attempt.
        """
        if folder is None or backbone.task.unit is not Unit.TEXT:
            return 0  # a text's states are many: they are computed where they are needed
        cache = FeatureCache(folder, backbone=backbone, fingerprint=files.manifest.fingerprint)
        missing = cache.missing(texts)
        if len(missing) <= SHARD:
            return 0  # a worker takes longer to start
        from .functions import encode_texts  # with all that trains, which most hosts never do

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
