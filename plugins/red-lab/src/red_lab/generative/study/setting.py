"""The study's sizes and training settings, chosen on validation texts.

The searches behind the numbers are in `docs/lab-notes.md`, section "Generative experts".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from red_lab.generative.corpora import Part, Sizes

__all__ = ["SMOLLM2", "TINY", "StudySetting"]


@dataclass(frozen=True, kw_only=True)
class StudySetting:
    """The settings of one study.

    Attributes:
        sizes: Amounts of text to read, in characters.
        tokens: Part → maximum tokens of every domain; a passage that would exceed it is dropped.
        background: Maximum tokens of the background.
        rank: R of an expert; a monolith has K·R.
        learning_rate: AdamW's peak learning rate, for experts.
        monolith_rate: The same for monoliths.
        weight_decay: AdamW's weight decay.
        dropout: Dropout rate on z while an expert or a monolith trains.
        batch: Tokens per step.
        epochs: Epochs of an expert; a monolith processes as many tokens as all experts together.
        off_domain: Weight of ‖W_c Δ‖² on the background.
        half: Whether training multiplies by the head in bfloat16.
        gate_steps: Steps of every router.
        gate_rate: AdamW's peak learning rate, for routers.
        gate_decay: AdamW's weight decay, for routers.
        gate_every: Steps between two evaluations on the gate rows.
        lessons: Steps of the distilled router, each over all fit rows.
        card: Maximum tokens of each part of an expert's card, and of the backbone's.
        switches: Documents for every ordered pair of domains.
        divergence: Tokens of a domain whose next-token distributions are compared.
        host_steps: Steps of the product's router, before its minimax game.
        products: Number of seeds that are also measured through packages.
        draws: Mixtures drawn from the simplex.
    """

    sizes: Sizes = field(default_factory=Sizes)
    tokens: Mapping[Part, int]
    background: int
    rank: int
    learning_rate: float
    monolith_rate: float
    weight_decay: float
    dropout: float
    batch: int
    epochs: int
    off_domain: float
    half: bool
    gate_steps: int = 1000
    gate_rate: float = 5e-3
    gate_decay: float = 0.1
    gate_every: int = 25
    lessons: int = 200
    card: int
    switches: int = 2
    divergence: int = 500
    host_steps: int = 200
    products: int = 1
    draws: int = 2000


TINY = StudySetting(
    sizes=Sizes(fit=64_000),
    tokens={"train": 60_000, "valid": 6_000, "fit": 16_000, "gate": 8_000, "test": 12_000},
    background=12_000,
    rank=64,
    learning_rate=1e-2,
    monolith_rate=1e-2,
    weight_decay=0.1,
    dropout=0.0,
    batch=256,
    epochs=8,
    off_domain=1e-4,
    half=False,
    card=16_000,
    switches=6,
    divergence=2_000,
    products=3,
)

SMOLLM2 = StudySetting(
    sizes=Sizes(
        train=56_000, valid=16_000, fit=40_000, gate=20_000, test=32_000, background=32_000
    ),
    tokens={"train": 9_000, "valid": 2_400, "fit": 6_000, "gate": 3_000, "test": 5_000},
    background=4_000,
    rank=64,
    learning_rate=3e-3,
    monolith_rate=3e-3,
    weight_decay=0.1,
    dropout=0.1,
    batch=128,
    epochs=4,
    off_domain=1e-5,
    half=True,
    card=6_000,
)
"""Sized so that three seeds take less than an hour on two cores."""
