"""Training of experts, each on its domain alone, and of monoliths of the same size on all domains.

A monolith is one adapter of rank K·R. Its steps take the same number of tokens of every domain and
minimise Σ λ_k ℓ_k, ℓ in bits per byte. λ is fixed, or moves towards the domains of largest loss
(group DRO) or of largest regret against their own expert. Every monolith processes as many tokens
as all experts together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from redhost_robust import MinimaxSettings, minimax
from torch import Tensor, nn

import redhost
from red_lab.generative.study.context import PassageTokens, StudyContext, draw, shown, slices
from redhost.core.bus.bus import Readout
from redhost.core.bus.experts import LowRank
from redhost.core.training.expert import ExpertRows, train_expert

__all__ = ["Monolith", "domain_losses", "settings_of", "train_monolith", "train_one", "untrained"]

VALIDATION_TOKENS = 600
"""Tokens of every domain on which a monolith is validated."""


def settings_of(context: StudyContext, *, seed: int) -> redhost.authoring.ExpertSettings:
    """Return the training settings of an expert."""
    s = context.setting
    return redhost.authoring.ExpertSettings(
        rank=s.rank,
        epochs=s.epochs,
        batch=s.batch,
        learning_rate=s.learning_rate,
        weight_decay=s.weight_decay,
        dropout=s.dropout,
        off_domain=s.off_domain,
        patience=s.epochs,
        half=s.half,
        seed=seed,
    )


def train_one(context: StudyContext, domain: str, *, seed: int, checkpoint: Path) -> redhost.Expert:
    """Train the expert of a domain; an interrupted run resumes from its last epoch."""
    train, valid = context.part(domain, "train"), context.part(domain, "valid")
    show = shown(f"expert {domain}", total=context.setting.epochs)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    trained = train_expert(
        _rows(context, train),
        Readout(classifier=context.head, task=context.backbone.task),
        labels=(),
        settings=settings_of(context, seed=1000 * seed + context.domains.index(domain)),
        valid=_rows(context, valid),
        background=context.norm(context.cache.encode(context.background)),
        checkpoint=checkpoint,
        progress=lambda done, _: show(done),
    )
    checkpoint.unlink(missing_ok=True)
    return trained.expert


@dataclass(kw_only=True, eq=False)
class Monolith:
    """A monolith in training.

    Attributes:
        adapter: The adapter, of rank K·R.
        stages: Copies of it at the start and half-way.
    """

    adapter: redhost.Expert
    stages: dict[str, redhost.Expert] = field(default_factory=dict)


def untrained(context: StudyContext, *, seed: int) -> LowRank:
    """Return an adapter of rank K·R whose last layer is zero."""
    generator = torch.Generator().manual_seed(seed)
    width, rank = context.backbone.width, context.setting.rank * len(context.domains)
    U = torch.randn(rank, width, generator=generator) / width**0.5
    return LowRank(U=U, V=torch.zeros(width, rank), activation="gelu", space="hidden")


def train_monolith(
    context: StudyContext,
    *,
    name: str,
    start: Tensor,
    moves: bool,
    reference: Sequence[redhost.Expert] | None,
    seed: int,
) -> Monolith:
    """Train one monolith.

    Args:
        context: The texts.
        name: The label of the progress bar.
        start: The initial λ ``(K,)``.
        moves: Whether λ moves.
        reference: Experts whose own losses are subtracted; None subtracts nothing.
        seed: Initial weights and order of the tokens.
    """
    setting, parts = context.setting, [context.part(d, "train") for d in context.domains]
    made = Monolith(adapter=untrained(context, seed=seed))
    each = max(1, setting.batch // len(parts))
    steps = setting.epochs * -(-sum(map(len, parts)) // (each * len(parts)))
    generator = torch.Generator().manual_seed(seed)
    show = shown(name, total=steps)
    validation = [_first(context.part(d, "valid"), VALIDATION_TOKENS) for d in context.domains]
    minimax(
        made.adapter,
        losses=_staged(made, context, parts, each=each, steps=steps, generator=generator),
        aside=lambda: _validation_losses(context, [made.adapter] * len(validation), validation),
        reference=torch.zeros(len(parts))
        if reference is None
        else _validation_losses(context, reference, validation),
        settings=MinimaxSettings(
            steps=steps,
            learning_rate=setting.monolith_rate,
            weight_decay=setting.weight_decay,
            rate_lambda=0.05 if moves else 0.0,
            every=max(1, steps // max(setting.epochs, 1)),
        ),
        start=start,
        progress=lambda done, _: show(done),
    )
    return made


def domain_losses(
    context: StudyContext,
    adapter: nn.Module,
    parts: Sequence[PassageTokens],
    *,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return ℓ of every domain's tokens ``(K,)``, nats per token, with its autograd graph."""
    h = torch.cat([p.h for p in parts])
    z = context.norm(h)
    if dropout:
        z = z * (torch.rand(z.shape, generator=generator) >= dropout) / (1 - dropout)
    head = context.learning_head
    logits = ((h + adapter(z)).to(head.dtype) @ head.T).to(h.dtype)
    target = torch.cat([p.target for p in parts])
    each = nn.functional.cross_entropy(logits, target, reduction="none")
    return torch.stack([x.mean() for x in torch.split(each, [len(p) for p in parts])])


def _staged(
    made: Monolith,
    context: StudyContext,
    parts: Sequence[PassageTokens],
    *,
    each: int,
    steps: int,
    generator: torch.Generator,
) -> Callable[[], Tensor]:
    """Return a function → ℓ of a new batch, in bits per byte; it also keeps adapter copies."""
    scale = torch.tensor([p.scale for p in parts])
    taken = 0

    def losses() -> Tensor:
        nonlocal taken
        for stage, step in (("start", 0), ("middle", steps // 2)):
            if taken == step:
                made.stages[stage] = copy.deepcopy(made.adapter)
        taken += 1
        drawn = [draw(p, each, generator) for p in parts]
        found = domain_losses(
            context, made.adapter, drawn, dropout=context.setting.dropout, generator=generator
        )
        return found * scale

    return losses


def _validation_losses(
    context: StudyContext, experts: Sequence[nn.Module], parts: Sequence[PassageTokens]
) -> Tensor:
    """Return bits per byte of one adapter per part ``(K,)``."""
    losses = []
    with torch.no_grad():
        for expert, part in zip(experts, parts, strict=True):
            total = 0.0
            for piece in slices(len(part), cost=len(context.head)):
                some = PassageTokens(
                    h=part.h[piece], target=part.target[piece], lengths=(), sizes=()
                )
                total += float(domain_losses(context, expert, [some])) * len(some)
            losses.append(total / len(part) * part.scale)
    return torch.tensor(losses)


def _first(tokens: PassageTokens, most: int) -> PassageTokens:
    """Return the first tokens, with the scale of all tokens."""
    share = min(most, len(tokens)) / len(tokens)
    return PassageTokens(
        h=tokens.h[:most],
        target=tokens.target[:most],
        lengths=(),
        sizes=(round(sum(tokens.sizes) * share),),
    )


def _rows(context: StudyContext, tokens: PassageTokens) -> ExpertRows:
    return ExpertRows(
        h=tokens.h, z=context.norm(tokens.h), answers=[str(t) for t in tokens.target.tolist()]
    )
