"""Experts, each alone on its domain, and monoliths of the same size on all of them.

A monolith is one adapter of rank K·R. Its steps take the same number of tokens of every domain and
descend Σ λ_k ℓ_k, ℓ in bits per byte: λ stays as given, or goes where the loss (group DRO) or the
regret against the domain's own expert is. All visit as many tokens as the experts together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import redhost
from red_lab.generative.study.bench import Bench, Tokens, draw, shown, slices
from redhost.robust import MinimaxSettings, minimax

__all__ = ["Monolith", "domain_losses", "settings_of", "train_monolith", "train_one", "untrained"]

LOOKS = 600
"""Tokens of every domain that a monolith is looked at on."""


def settings_of(bench: Bench, *, seed: int) -> redhost.ExpertSettings:
    """Return how an expert is trained."""
    s = bench.setting
    return redhost.ExpertSettings(
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


def train_one(bench: Bench, domain: str, *, seed: int, checkpoint: Path) -> redhost.Expert:
    """Train the expert of a domain; a run that was stopped goes on from its last epoch."""
    train, valid = bench.part(domain, "train"), bench.part(domain, "valid")
    show = shown(f"expert {domain}", total=bench.setting.epochs)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    trained = redhost.train_expert(
        _rows(train),
        norm=bench.norm,
        classifier=bench.head,
        labels=(),
        domain_labels=(),
        settings=settings_of(bench, seed=1000 * seed + bench.domains.index(domain)),
        task=bench.backbone.task,
        valid=_rows(valid),
        background=bench.cache.encode(bench.background),
        checkpoint=checkpoint,
        progress=lambda done, _: show(done),
    )
    checkpoint.unlink(missing_ok=True)
    return trained.expert


@dataclass(kw_only=True, eq=False)
class Monolith:
    """A monolith on its way.

    Attributes:
        adapter: Of rank K·R.
        stages: Copies of it at the start and half-way.
    """

    adapter: redhost.Expert
    stages: dict[str, redhost.Expert] = field(default_factory=dict)


def untrained(bench: Bench, *, seed: int) -> redhost.LowRank:
    """Return an adapter of rank K·R whose last layer is zero."""
    generator = torch.Generator().manual_seed(seed)
    width, rank = bench.backbone.width, bench.setting.rank * len(bench.domains)
    U = torch.randn(rank, width, generator=generator) / width**0.5
    return redhost.LowRank(U=U, V=torch.zeros(width, rank), activation="gelu", space="hidden")


def train_monolith(
    bench: Bench,
    *,
    name: str,
    start: Tensor,
    moves: bool,
    reference: Sequence[redhost.Expert] | None,
    seed: int,
) -> Monolith:
    """Train one monolith.

    Args:
        bench: The texts.
        name: What the bar says.
        start: λ at first ``(K,)``.
        moves: Whether λ moves.
        reference: Experts whose own losses are subtracted; None subtracts nothing.
        seed: Initial weights and order of the tokens.
    """
    setting, parts = bench.setting, [bench.part(d, "train") for d in bench.domains]
    made = Monolith(adapter=untrained(bench, seed=seed))
    each = max(1, setting.batch // len(parts))
    steps = setting.epochs * -(-sum(map(len, parts)) // (each * len(parts)))
    generator = torch.Generator().manual_seed(seed)
    show = shown(name, total=steps)
    looks = [_first(bench.part(d, "valid"), LOOKS) for d in bench.domains]
    minimax(
        made.adapter,
        losses=_staged(made, bench, parts, each=each, steps=steps, generator=generator),
        aside=lambda: _judged(bench, [made.adapter] * len(looks), looks),
        reference=torch.zeros(len(parts))
        if reference is None
        else _judged(bench, reference, looks),
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
    bench: Bench,
    adapter: nn.Module,
    parts: Sequence[Tokens],
    *,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return ℓ of every domain's tokens ``(K,)``, nats a token, with its graph."""
    h = torch.cat([p.h for p in parts])
    z = bench.norm(h)
    if dropout:
        z = z * (torch.rand(z.shape, generator=generator) >= dropout) / (1 - dropout)
    head = bench.learning_head
    logits = ((h + adapter(z)).to(head.dtype) @ head.T).to(h.dtype)
    target = torch.cat([p.target for p in parts])
    each = nn.functional.cross_entropy(logits, target, reduction="none")
    return torch.stack([x.mean() for x in torch.split(each, [len(p) for p in parts])])


def _staged(
    made: Monolith,
    bench: Bench,
    parts: Sequence[Tokens],
    *,
    each: int,
    steps: int,
    generator: torch.Generator,
) -> Callable[[], Tensor]:
    """Return → ℓ in bits per byte of a fresh batch; keeps copies of the adapter on the way."""
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
            bench, made.adapter, drawn, dropout=bench.setting.dropout, generator=generator
        )
        return found * scale

    return losses


def _judged(bench: Bench, experts: Sequence[nn.Module], parts: Sequence[Tokens]) -> Tensor:
    """Return bits per byte of one adapter a part ``(K,)``."""
    told = []
    with torch.no_grad():
        for expert, part in zip(experts, parts, strict=True):
            total = 0.0
            for piece in slices(len(part), cost=len(bench.head)):
                some = Tokens(h=part.h[piece], target=part.target[piece], lengths=(), sizes=())
                total += float(domain_losses(bench, expert, [some])) * len(some)
            told.append(total / len(part) * part.scale)
    return torch.tensor(told)


def _first(tokens: Tokens, most: int) -> Tokens:
    """Return the first tokens, with the scale of all."""
    share = min(most, len(tokens)) / len(tokens)
    return Tokens(
        h=tokens.h[:most],
        target=tokens.target[:most],
        lengths=(),
        sizes=(round(sum(tokens.sizes) * share),),
    )


def _rows(tokens: Tokens) -> redhost.Rows:
    return redhost.Rows(h=tokens.h, answers=[str(t) for t in tokens.target.tolist()])
