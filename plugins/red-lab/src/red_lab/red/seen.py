"""Compute the share of test questions that also occur in training or pretraining data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from red_lab.arithmetic import SPLITS, Split
from red_lab.corpus import Corpus
from red_lab.red.queries import Data
from red_lab.tiny_pretrain import Pretraining

__all__ = ["seen"]


def seen(backbone: str, datasets: Sequence[Data]) -> dict[str, float | None]:
    """Return shares of the test questions of all seeds, 0–1.

    Args:
        backbone: The backbone; only for ``tiny`` is the pretraining data known.
        datasets: The questions of seed 0, 1, …

    Returns:
        ``training``: the same text is a training question. ``rearranged``: the same, or with its
        numbers in another order. ``pretraining``: the language model was pretrained on the
        question and its answer; None if the pretraining data is not known.
    """
    tests = [q for data in datasets for q in data.test]
    texts = [{q.text for q in data.train} for data in datasets]
    clusters = [{q.cluster for q in data.train} for data in datasets]
    every = range(len(datasets))
    training = sum(q.text in texts[n] for n in every for q in datasets[n].test)
    rearranged = sum(q.cluster in clusters[n] for n in every for q in datasets[n].test)
    read = None
    if backbone == "tiny":
        read = sum(q.text in _pretrained_on(n % SPLITS) for n in every for q in datasets[n].test)
    return {
        "training": training / len(tests),
        "rearranged": rearranged / len(tests),
        "pretraining": None if read is None else read / len(tests),
    }


@cache
def _pretrained_on(number: int) -> frozenset[str]:
    """Return the questions in the pretraining data of the tiny language model of a split."""
    settings, corpus = Pretraining(), Corpus.of(Split.numbered(number), seed=0)
    return frozenset(
        example.question
        for step in range(settings.steps)
        for example in corpus.batch(step, size=settings.batch)
    )
