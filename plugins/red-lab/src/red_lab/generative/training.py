"""Training of experts, each on its domain alone, and of monoliths of the same size on all domains.

A monolith is one adapter of rank K·R. Its steps take the same number of tokens of every domain and
minimise Σ λ_k ℓ_k, ℓ in bits per byte. λ is fixed, or moves towards the domains of largest loss
(group DRO) or of largest regret against their own expert. Every monolith processes as many tokens
as all experts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import redhost_author
import torch
from redhost_author.training.expert import ExpertRows, train_expert
from redhost_robust import MinimaxSettings, minimax
from torch import Tensor, nn

import redhost
from red_lab.generative.context import PassageTokens, StudyContext, draw, slices
from red_lab.progress import shown
from redhost.core.bus.bus import Readout
from redhost.core.bus.experts import LowRank

__all__ = ["train_monolith", "train_one", "untrained"]

VALIDATION_TOKENS = 600
"""Tokens of every domain on which a monolith is validated."""


def train_one(context: StudyContext, domain: str, *, seed: int, checkpoint: Path) -> redhost.Expert:
    """Train the expert of a domain; an interrupted run resumes from its last epoch."""
    s, place = context.setting, context.domains.index(domain)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    trained = train_expert(
        _rows(context, context.part(domain, "train")),
        Readout(classifier=context.head, task=context.backbone.task),
        labels=(),
        settings=redhost_author.ExpertSettings(
            rank=s.rank,
            epochs=s.epochs,
            batch=s.batch,
            learning_rate=s.learning_rate,
            weight_decay=s.weight_decay,
            dropout=s.dropout,
            off_domain=s.off_domain,
            patience=s.epochs,
            half=s.half,
            seed=1000 * seed + place,
        ),
        valid=_rows(context, context.part(domain, "valid")),
        background=context.norm(context.cache.encode(context.background)),
        checkpoint=checkpoint,
        progress=shown(f"expert {domain}"),
    )
    checkpoint.unlink(missing_ok=True)
    return trained.expert


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
    seed: int,
    moves: bool = False,
    reference: Sequence[redhost.Expert] | None = None,
) -> redhost.Expert:
    """Train one monolith.

    Args:
        context: The texts.
        name: The label of the progress bar.
        start: The initial λ ``(K,)``.
        seed: Initial weights and order of the tokens.
        moves: Whether λ moves.
        reference: Experts whose own losses are subtracted; None subtracts nothing.
    """
    setting, parts = context.setting, [context.part(d, "train") for d in context.domains]
    adapter, generator = untrained(context, seed=seed), torch.Generator().manual_seed(seed)
    each = max(1, setting.batch // len(parts))
    steps = setting.epochs * -(-sum(map(len, parts)) // (each * len(parts)))
    scale = torch.tensor([p.scale for p in parts])
    validation = [_first(context.part(d, "valid"), VALIDATION_TOKENS) for d in context.domains]

    def losses() -> Tensor:
        """Return ℓ of a new batch, in bits per byte."""
        drawn = [draw(p, each, generator) for p in parts]
        return _domain_losses(context, adapter, drawn, generator=generator) * scale

    minimax(
        adapter,
        losses=losses,
        aside=lambda: _validation_losses(context, [adapter] * len(validation), validation),
        reference=torch.zeros(len(parts))
        if reference is None
        else _validation_losses(context, reference, validation),
        settings=MinimaxSettings(
            steps=steps,
            learning_rate=setting.learning_rate,
            weight_decay=setting.weight_decay,
            rate_lambda=0.05 if moves else 0.0,
            every=max(1, steps // max(setting.epochs, 1)),
        ),
        start=start,
        progress=shown(name),
    )
    return adapter


def _domain_losses(
    context: StudyContext,
    adapter: nn.Module,
    parts: Sequence[PassageTokens],
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return ℓ of every domain's tokens ``(K,)``, nats per token; with dropout if it is drawn."""
    h = torch.cat([p.h for p in parts])
    z = context.norm(h)
    if generator is not None and (dropout := context.setting.dropout):
        z = z * (torch.rand(z.shape, generator=generator) >= dropout) / (1 - dropout)
    head = context.learning_head
    logits = ((h + adapter(z)).to(head.dtype) @ head.T).to(h.dtype)
    target = torch.cat([p.target for p in parts])
    each = nn.functional.cross_entropy(logits, target, reduction="none")
    return torch.stack([x.mean() for x in torch.split(each, [len(p) for p in parts])])


def _validation_losses(
    context: StudyContext, experts: Sequence[nn.Module], parts: Sequence[PassageTokens]
) -> Tensor:
    """Return bits per byte of one adapter per part ``(K,)``."""
    losses = []
    with torch.no_grad():
        for expert, part in zip(experts, parts, strict=True):
            total = 0.0
            for piece in slices(len(part), cost=len(context.head)):
                h, target = part.h[piece], part.target[piece]
                rows = PassageTokens(h=h, target=target, lengths=(), sizes=())
                total += float(_domain_losses(context, expert, [rows])) * len(rows)
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
