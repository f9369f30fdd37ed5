"""A composition distilled into one expert (a fold), with averaged and joint experts as baselines.

A fold is trained on the training texts without labels and on the composition's answers to them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from redhost_merge.distill import DistillSettings, merge
from torch import Tensor

import redhost
from red_lab.merging.judge import alone, hits, moved, right, size
from red_lab.merging.subjects import Subject, expert_in, train_one
from red_lab.text.measure import shuffled
from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.experts import LowRank
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import hits_by_system
from redhost.core.training.data import DataSplits

__all__ = ["SHARPNESS", "STEPS", "average", "folded", "joint"]

SHARPNESS = (0.0, 0.05, 0.2, 1.0)
"""ρ of the folds."""

STEPS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Lengths of random steps from a fold's weights, as shares of its tensors' norms."""

DRAWS = 8
"""Number of steps of each length."""

CARD = 256
"""Maximum rows of a part of a card; nothing is trained on them, so any choice will do."""


def folded(subject: Subject, *, seed: int, work: Path) -> dict[str, Any]:
    """Train five experts separately, fold them, and evaluate everything on the test rows.

    Args:
        subject: The data.
        seed: Random seed of all training.
        work: Folder of packages; existing packages are replaced.

    Returns:
        Hits by system, the number of parameters of each, and for each ρ the mean KL to the
        composition on test texts after random steps.
    """
    folder = work / f"{subject.name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    made = {i: train_one(subject, i, folder / "apart", seed=seed) for i in subject.parts}
    options = RecomposeOptions(router=subject.router)
    composed = compose(
        subject.backbone, [*made.values()], options=options, cache=subject.cache
    ).composed
    experts = [expert_in(path) for path in made.values()]
    folds = {
        f"{rho:g}": _fold(composed, subject, folder / f"fold-{rho:g}", rho=rho, seed=seed)
        for rho in SHARPNESS
    }
    strange = shuffled(composed, seed=seed)
    one = {
        "averaged": average(experts),
        **{f"fold {rho}": fold for rho, fold in folds.items()},
        "fold of shuffled": _fold(strange, subject, folder / "shuffled", rho=0.0, seed=seed),
        **_joint_experts(subject, experts, folder, seed=seed),
    }
    found, sizes = _composed_hits(composed, experts, subject)
    return {
        "hits": found | {name: hits(expert, subject) for name, expert in one.items()},
        "sizes": sizes | {name: size(expert) for name, expert in one.items()},
        "flat": _flatness(composed, folds, subject),
    }


def _composed_hits(
    composed: redhost.ComposedModel, experts: Sequence[redhost.Expert], subject: Subject
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return hits and sizes of the systems with all experts, the best expert, and no expert."""
    systems = hits_by_system(composed, subject.test, encode=subject.context.encode)
    each = [size(e) for e in experts]
    routed = sum(each) + size(composed.bus.router)
    sizes = {"routed": routed, "oracle": sum(each), "uniform": sum(each), "best_single": max(each)}
    found = {name: systems[name].tolist() for name in sizes}
    found |= {"no router": _side_by_side(experts, subject), "nothing": systems["backbone"].tolist()}
    return found, {**sizes, "no router": sum(each), "nothing": 0}


def _joint_experts(
    subject: Subject, experts: Sequence[redhost.Expert], folder: Path, *, seed: int
) -> dict[str, redhost.Expert]:
    """Train joint experts on the pooled rows, with the rank of one expert and of all together."""
    rank, whole = len(experts[0].state_dict()["U"]), joint(subject)
    units = {"joint": rank, "joint, all ranks": rank * len(experts)}
    return {
        name: expert_in(train_one(whole, "joint", folder / name, seed=seed, rank=r))
        for name, r in units.items()
    }


def joint(subject: Subject) -> Subject:
    """Return the subject with a single part: the pooled rows of all teams."""
    parts = subject.parts.values()
    rows = DataSplits(
        train=tuple(row for part in parts for row in part.train),
        valid=tuple(row for part in parts for row in part.valid),
        fit=tuple(row for part in parts for row in part.fit)[:CARD],
        gate=tuple(row for part in parts for row in part.gate)[:CARD],
    )
    nobody = tuple(b for b in subject.context.background if b.domain not in subject.parts)
    return replace(
        subject,
        parts={"joint": rows},
        context=replace(subject.context, background=nobody),
    )


def average(experts: Sequence[redhost.Expert]) -> LowRank:
    """Return one low-rank expert with the mean of all tensors; rows of own labels are concatenated.

    Args:
        experts: Experts of one rank that all write hidden states, or all labels of their own.
    """
    first, tensors = experts[0], [e.state_dict() for e in experts]
    assert isinstance(first, LowRank)  # noqa: S101  (all here are)
    own = first.space == "labels"

    def mean_of(name: str) -> Tensor | None:
        if name not in tensors[0]:
            return None
        parts = [t[name] for t in tensors]
        return torch.cat(parts) if own and name in {"V", "v"} else torch.stack(parts).mean(0)

    given: Mapping[str, Any] = {name: mean_of(name) for name in ("U", "u", "V", "v")}
    return LowRank(
        **given,
        activation=first.activation,
        space=first.space,
        labels=tuple(y for e in experts for y in e.labels) if own else (),
    )


def _side_by_side(experts: Sequence[redhost.Expert], subject: Subject) -> list[float]:
    """Return the hits without a router: the sum of all Δ, or all labels' logits in one softmax."""
    backbone, texts = subject.context.backbone, [r.text for r in subject.test]
    h = subject.context.encode(texts)
    z = LayerNorm(width=backbone.width, eps=backbone.eps)(h)
    with torch.inference_mode():
        deltas = [e(z) for e in experts]
        if backbone.classifier is not None:
            moved_h = h + torch.stack(deltas).sum(0)
            return right(moved_h @ backbone.classifier.T, backbone.labels, subject)
        return right(torch.cat(deltas, dim=-1), [y for e in experts for y in e.labels], subject)


def _fold(
    composed: redhost.ComposedModel, subject: Subject, folder: Path, *, rho: float, seed: int
) -> redhost.Expert:
    """Fold a composition by `redhost merge`, on texts of all training rows."""
    folder.mkdir(parents=True)
    project = folder / "red-expert-fold"
    merge(
        composed,
        [r.text for part in subject.parts.values() for r in part.train],
        expert_id="fold",
        project=project,
        encode=subject.context.encode,
        settings=DistillSettings(sharpness=rho, seed=seed),
    )
    return expert_in(next(project.glob("src/*/expert.json")).parent)


def _flatness(
    composed: redhost.ComposedModel, folds: Mapping[str, redhost.Expert], subject: Subject
) -> dict[str, dict[str, float]]:
    """Return the mean KL(composition ‖ fold) in nats by ρ and by length of a random step."""
    texts = [r.text for r in subject.test]
    with torch.inference_mode():
        p, _ = composed.bus(subject.context.encode(texts))

    def divergence(fold: redhost.Expert, *, step: float) -> float:
        names = fold.labels if fold.space == "labels" else subject.context.backbone.labels
        teacher = p[:, [composed.bus.labels.index(y) for y in names]]
        teacher = teacher / teacher.sum(-1, keepdim=True)  # a fold has no label for declining
        own = torch.special.xlogy(teacher, teacher)
        found = [
            (own - teacher * alone(moved(fold, length=step, seed=draw), subject, texts)).sum(-1)
            for draw in range(DRAWS if step else 1)
        ]
        return float(torch.stack(found).mean())

    return {
        rho: {f"{step:g}": divergence(fold, step=step) for step in (0.0, *STEPS)}
        for rho, fold in folds.items()
    }
