"""Feature shards: h of many texts, computed by a crew ahead of the time it is asked for.

Any split into shards gives the same bits, because every text is computed in a canonical batch.
Rows go into the feature cache as they come, so a run that was stopped goes on from there. What
experts read inside the trunk (taps) is still computed where it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...registry.errors import IntegrityError
from ...registry.files import BackboneFiles
from ..backbones.backbone import Backbone
from ..backbones.features import FeatureCache
from ..backbones.trunk import BATCH
from ..progress import Progress
from .crew import Crew, require_all
from .engine import Files, Job, Jobs

__all__ = ["SHARD", "Ahead"]

SHARD = 8 * BATCH
"""Texts of a job: enough to fill batches, few enough to share out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ahead:
    """Encodes texts before they are asked for.

    Attributes:
        crew: Who does it.
        progress: Called with (shards done, shards in all).
    """

    crew: Crew
    progress: Progress | None = None

    def encode(
        self, texts: Sequence[str], *, backbone: Backbone, files: BackboneFiles, folder: Path | None
    ) -> int:
        """Put h of texts into the feature cache; return how many it lacked.

        Not of a backbone that generates, whose texts have a row for each token.

        Args:
            texts: Any texts, repeated or not.
            backbone: The backbone.
            files: Its package, which workers make it from.
            folder: Where features are remembered; without one there is nothing to do.

        Raises:
            JobsError: If a shard failed on every attempt.
        """
        if folder is None or backbone.generates:
            return 0  # a text's states are many: they are computed where they are asked for
        cache = FeatureCache(folder, backbone=backbone, fingerprint=files.manifest.fingerprint)
        missing = cache.missing(texts)
        if len(missing) <= SHARD:
            return 0  # a worker takes longer to start
        jobs = Jobs(threads=torch.get_num_threads())
        inputs = jobs.put("backbone", files.files)
        for start in range(0, len(missing), SHARD):
            shard = {"texts": missing[start : start + SHARD], "device": backbone.device}
            jobs.add(f"shard {start // SHARD}", "encode-texts", shard, inputs)

        def remember(job: Job, made: Files) -> None:
            _remember(cache, job.arguments["texts"], made["h.f32"], files.manifest.width)

        require_all(self.crew.run(jobs, remember, progress=self.progress), of=len(jobs.listed))
        return len(missing)


def _remember(cache: FeatureCache, texts: Sequence[str], data: bytes, width: int) -> None:
    rows = np.frombuffer(data, dtype="<f4")
    if rows.size != len(texts) * width:
        raise IntegrityError(
            "a shard is not what was asked for",
            expected=f"{len(texts)} rows of width {width}",
            found=f"{rows.size} numbers",
        )
    cache.remember(texts, rows.reshape(len(texts), width))
