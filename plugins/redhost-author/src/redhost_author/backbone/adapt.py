"""The base stage: adapt a trunk's top blocks and a shared classifier once, then freeze.

Seed 001, stage 1, with the seed's contradictions resolved: the number of blocks is read from the
model, the top k are trained, k = 0 is allowed, and the result is a delta: the changed tensors.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from redhost.core.adamw import AdamW
from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.encoder import TextEncoder, blocks_of
from redhost.core.types import Progress, Row, in_stage
from redhost.registry.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class AdaptSettings:
    """How the base stage trains.

    Attributes:
        last_blocks: k, the number of top blocks that are trained; the rest stays frozen.
        epochs: Passes over the rows.
        batch: Rows a step.
        learning_rate: Peak of AdamW for the blocks, decayed to zero along a cosine.
        classifier_rate: The same for the classifier, which is trained from scratch.
        weight_decay: AdamW's.
        warmup: Steps of linear warm-up.
        clip: Largest norm of a step's gradient.
        seed: Seed of the order of rows and the classifier's initial weights.
    """

    last_blocks: int = 2
    epochs: int = 8
    batch: int = 128
    learning_rate: float = 3e-4
    classifier_rate: float = 3e-3
    weight_decay: float = 0.1
    warmup: int = 20
    clip: float = 1.0
    seed: int = 0


def adapt(
    backbone: Backbone,
    rows: Sequence[Row],
    *,
    labels: Sequence[str] | None = None,
    settings: AdaptSettings = AdaptSettings(),
    progress: Progress | None = None,
) -> Backbone:
    """Return a new, frozen backbone with adapted top blocks and a classifier.

    Args:
        backbone: The bare backbone, which is not changed.
        rows: The labelled rows.
        labels: The classifier's labels in order; by default those of the rows, sorted.
        settings: How to train.
        progress: Called with (steps done, steps in all).

    Raises:
        UsageError: If k is larger than the number of blocks.
    """
    trunk = TextEncoder(
        model=copy.deepcopy(backbone.trunk.model),
        tokenizer=backbone.trunk.tokenizer,
        pooling=backbone.trunk.pooling,
        max_tokens=backbone.trunk.max_tokens,
        features=backbone.trunk.features,
        stated=backbone.trunk.stated,
    )
    names = trainable_names(trunk, last_blocks=settings.last_blocks)
    generator = torch.Generator().manual_seed(settings.seed)
    task_head, answers = backbone.task.head, [r.label for r in rows]
    labels = labels or sorted(task_head.labels_in(answers))
    head = 0.02 * torch.randn(len(labels), trunk.width, generator=generator)
    classifier = nn.Parameter(head)
    targets = task_head.targets(answers, labels)
    units = task_head.units(targets, classifier=head)
    targets = units.of(targets)
    parameters = [p for n, p in trunk.model.named_parameters() if n in names]
    try:
        for p in parameters:
            p.requires_grad_(True)
        _descend(
            trunk,
            [r.text for r in rows],
            lambda h, at: task_head.loss(h @ classifier.T, targets[at]),
            parameters=(parameters, [classifier]),
            settings=settings,
            generator=generator,
            progress=progress,
        )
    finally:
        trunk.model.requires_grad_(False)
    return dataclasses.replace(
        backbone,
        trunk=trunk,
        classifier=classifier.detach() * units.scale,
        labels=tuple(labels),
    )


def trainable_names(trunk: TextEncoder, *, last_blocks: int) -> frozenset[str]:
    """Return the names of the parameters in the top k blocks and in the norms after them."""
    prefix, blocks = blocks_of(trunk.model)
    if not 0 <= last_blocks <= len(blocks):
        raise UsageError(
            "cannot adapt that many blocks",
            expected=f"0 to {len(blocks)}",
            found=str(last_blocks),
        )
    if last_blocks == 0:
        return frozenset()
    top = tuple(f"{prefix}.{i}." for i in range(len(blocks) - last_blocks, len(blocks)))
    names = [n for n, _ in trunk.model.named_parameters()]
    last = max(i for i, n in enumerate(names) if n.startswith(f"{prefix}."))
    after = [n for n in names[last + 1 :] if n.rpartition(".")[0].endswith("norm")]
    return frozenset([n for n in names if n.startswith(top)] + after)


def delta(base: TextEncoder, adapted: TextEncoder) -> dict[str, Tensor]:
    """Return the tensors of `adapted` that differ from those of `base` in any bit."""
    old = base.model.state_dict()
    return {
        name: tensor.contiguous()
        for name, tensor in adapted.model.state_dict().items()
        if not torch.equal(tensor, old[name])
    }


def _descend(
    trunk: TextEncoder,
    texts: Sequence[str],
    loss: Callable[[Tensor, list[int]], Tensor],
    *,
    parameters: tuple[list[nn.Parameter], list[nn.Parameter]],
    settings: AdaptSettings,
    generator: torch.Generator,
    progress: Progress | None,
) -> None:
    """Run AdamW with a cosine schedule over batches of equal token length.

    Args:
        trunk: The encoder.
        texts: All training texts.
        loss: h ``(B, D)`` and the indices of its texts → the loss.
        parameters: The parameters of the blocks, and the classifier.
        settings: How to train.
        generator: The source of the order of rows.
        progress: Called with (steps done, steps in all).
    """
    peaks = (settings.learning_rate, settings.classifier_rate)
    optimizers = [
        AdamW(several, betas=(0.9, 0.98), weight_decay=settings.weight_decay)
        for several in parameters
    ]
    ids = [trunk.tokens(t) for t in texts]
    batches = [b for _ in range(settings.epochs) for b in _batches(ids, settings.batch, generator)]
    progress = in_stage(progress, "base stage")
    for step, rows in enumerate(batches, start=1):
        h = trunk.pool(trunk.hidden_states(torch.tensor([ids[i] for i in rows])))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(h, rows).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([p for group in parameters for p in group], settings.clip)
        share = _rate(step - 1, total=len(batches), warmup=settings.warmup)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.step(peak * share)
        if progress is not None:
            progress(step, len(batches))


def _rate(step: int, *, total: int, warmup: int) -> float:
    """Return a step's learning rate as a share of its peak: warm-up, then a cosine."""
    decay = 0.5 * (1 + math.cos(math.pi * min(step / max(total, 1), 1.0)))
    return min(1.0, (step + 1) / max(warmup, 1)) * decay


def _batches(
    ids: Sequence[Sequence[int]], size: int, generator: torch.Generator
) -> list[list[int]]:
    """Shuffle the rows into batches of equal token length, in shuffled order."""
    by_length: dict[int, list[int]] = {}
    for i in torch.randperm(len(ids), generator=generator).tolist():
        by_length.setdefault(len(ids[i]), []).append(i)
    cut = [rows[s : s + size] for rows in by_length.values() for s in range(0, len(rows), size)]
    return [cut[i] for i in torch.randperm(len(cut), generator=generator).tolist()]
