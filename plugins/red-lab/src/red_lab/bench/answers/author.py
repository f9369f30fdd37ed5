"""An author's waiting time from real texts to a package, and the encoder's part of it."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import redhost
from red_lab.bench.answers.subject import Subject
from red_lab.newsgroups import rows
from redhost.authoring import ExpertPlan, ExpertSettings, split_rows
from redhost.core.training.context import AuthoringContext

__all__ = ["AUTHOR_ROWS", "author"]

AUTHOR_ROWS = 2000
"""Training posts of the expert, over all labels."""


def author(*, folder: str, name: str, texts: int) -> dict[str, Any]:
    """Train an expert on posts, as its author would, and encode the same posts alone.

    Runs in a separate process. The second training finds all features in the cache, like a second
    expert on the same texts.

    Args:
        folder: The folder of the subjects.
        name: The backbone's name.
        texts: Number of posts.
    """
    torch.set_num_threads(1)
    subject = Subject.under(Path(folder), name)
    data = random.Random(2).sample(rows("train"), texts)  # noqa: S311  (a sample, no secret)
    package = next((subject.home.parent / "packages" / f"red-backbone-{name}" / "src").iterdir())
    with tempfile.TemporaryDirectory() as scratch:
        context = redhost.authoring.open_for_training(package, cache=Path(scratch, "cache"))
        context.backbone.encode(["loaded now"])
        seconds = [_train(Path(scratch, n), data, context) for n in ("first", "second")]
        start = time.perf_counter()
        context.backbone.encode([row.text for row in data])
        alone = time.perf_counter() - start
    return {"texts": texts, "encoder": alone, "first": seconds[0], "second": seconds[1]}


def _train(project: Path, data: list[redhost.Row], context: AuthoringContext) -> float:
    start = time.perf_counter()
    redhost.authoring.write_project(project, kind="expert", package_id="posts", summary="posts")
    redhost.authoring.train_package(
        project,
        ExpertPlan(id="posts", writes="labels"),
        split_rows(data),
        context=context,
        settings=ExpertSettings(space="labels", seed=0),
    )
    return time.perf_counter() - start
