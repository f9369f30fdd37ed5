"""Which token follows: penalties, the temperature, limits on what may be drawn, one draw.

Of p(x_t+1 | x_≤t) of the bus, in this order:

    p_v ← 0    unless the grammar allows v      if there is one: `grammar`
    log p_v ← ρ log p_v                   for tokens of the prompt and of the text so far
    log p_v ← log p_v − α [n_v > 0] − β n_v     n_v: how often v is in the text so far
    w_v ∝ p_v^(1/T)
    w_v ← 0    unless w_v ≥ m max w       min-p (Nguyen et al., 2024)
    w_v ← 0    unless v is one of the k largest      top-k (Fan et al., 2018)
    w_v ← 0    unless the larger ones have less than P of all      top-p (Holtzman et al., 2020)

ρ is the repetition penalty of CTRL (Keskar et al., 2019), applied to log p instead of to logits:
the bus mixes probabilities, so it has no logits. α and β are OpenAI's presence and frequency
penalties.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from redhost.registry.errors import UsageError
from redhost_generate.grammar import Grammar

__all__ = ["Sampler", "Sampling"]

RANGES: Mapping[str, tuple[float, float]] = {
    "top_k": (0, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0, 10),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
"""Setting → its smallest and its largest value."""

POSITIVE = frozenset(("top_p", "repetition_penalty"))
"""Settings that are not 0."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Which tokens may be drawn, and how repeated ones are weighted; by default all, equally.

    Attributes:
        top_k: k: only the k most probable tokens; 0 for no limit.
        top_p: P: only the most probable tokens that together have P of the probability.
        min_p: m: only tokens with at least this part of the largest probability.
        repetition_penalty: ρ: more than 1 makes tokens of the prompt and the text less probable.
        presence_penalty: α: subtracted from log p of the text's own tokens.
        frequency_penalty: β: the same, for each time that the token is in the text.

    Raises:
        UsageError: If one of them is out of its range.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most or (value == 0 and name in POSITIVE):
                expected = f"from {least} to {most}{', but not 0' if name in POSITIVE else ''}"
                hint = f"Leave it out for {getattr(Sampling, name)}."
                raise UsageError(f"no such {name}", expected=expected, found=str(value), hint=hint)

    @property
    def penalises(self) -> bool:
        """Whether earlier tokens change a token's probability."""
        penalties = (self.presence_penalty, self.frequency_penalty)
        return self.repetition_penalty != 1 or any(penalties)


class Sampler:
    """Draws the tokens of one text.

    Args:
        prompt: The tokens of the prompt.
        temperature: T; 0 takes the most probable token.
        seed: The seed of the draws.
        sampling: See `Sampling`.
        grammar: The form of the text; None for any.
    """

    def __init__(
        self,
        prompt: Iterable[int],
        *,
        temperature: float,
        seed: int,
        sampling: Sampling,
        grammar: Grammar | None = None,
    ) -> None:
        self.temperature, self.sampling, self.grammar = temperature, sampling, grammar
        self.generator = torch.Generator().manual_seed(seed)
        self.prompt, self.counts = frozenset(prompt), Counter[int]()

    def draw(self, p: Tensor) -> int:
        """Draw a token from p ``(V,)``, and remember it.

        It is where a uniform number falls in the cumulative sums of w.
        """
        if self.grammar is not None:
            p = self.grammar.mask(p)
        if self.sampling.penalises:
            p = self._penalised(p)
        token = int(p.argmax()) if self.temperature == 0 else self._drawn(p)
        if self.grammar is not None:
            self.grammar.accept(token)
        self.counts[token] += 1
        return token

    def _drawn(self, p: Tensor) -> int:
        T = self.temperature
        weights = limited(p if T == 1 else (p / p.max()) ** (1 / T), self.sampling)
        sums = weights.cumsum(0, dtype=torch.float64)
        at = torch.rand((), generator=self.generator, dtype=torch.float64) * sums[-1]
        return min(int(torch.searchsorted(sums, at, right=True)), len(p) - 1)

    def _penalised(self, p: Tensor) -> Tensor:
        """Return p ``(V,)`` with the penalties, in units of its largest entry."""
        log_p, sampling = p.double().log(), self.sampling
        seen = torch.tensor(sorted(self.prompt | self.counts.keys()))
        log_p[seen] *= sampling.repetition_penalty
        own = torch.tensor([*self.counts], dtype=torch.long)
        times = torch.tensor([*self.counts.values()], dtype=log_p.dtype)
        log_p[own] -= sampling.presence_penalty + sampling.frequency_penalty * times
        return (log_p - log_p.max()).exp()


def limited(weights: Tensor, sampling: Sampling) -> Tensor:
    """Return w ``(V,)``, 0 for tokens that may not be drawn; of equal ones the first are kept."""
    if sampling.min_p:
        weights = weights.where(weights >= sampling.min_p * weights.max(), 0)
    if not sampling.top_k and sampling.top_p == 1:
        return weights
    ordered, order = weights.sort(descending=True, stable=True)
    if sampling.top_k:
        ordered[sampling.top_k :] = 0
    before = ordered.cumsum(0, dtype=torch.float64) - ordered
    ordered[before >= sampling.top_p * ordered.sum(dtype=torch.float64)] = 0
    return torch.zeros_like(weights).scatter(0, order, ordered)
