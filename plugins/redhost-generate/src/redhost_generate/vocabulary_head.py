"""The head of text generation: the next token of a text, among a whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redhost.core.bus.head import Scorer
from redhost.core.bus.task import TINY, SoftmaxHead
from redhost.core.types import Row
from redhost.registry.errors import UsageError

__all__ = ["VocabularyHead"]


class VocabularyHead(SoftmaxHead):
    """The head for the next token of a text; answers are token numbers, as text."""

    name, noun, domain, card = "vocabulary", "tokens", "text", "texts"
    cards = ("texts", "none")

    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Return softmax(logits / T), which sums to 1 within 1e-6 over fifty thousand tokens.

        torch's own softmax adds so many small numbers sequentially, and is off by some 2e-5.
        """
        scaled = logits / temperature
        # Less the largest, so that no exponential overflows; the quotient is the same.
        mass = (scaled - scaled.amax(dim=-1, keepdim=True)).exp()
        return mass / mass.sum(dim=-1, keepdim=True)

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return the tokens' numbers ``(N,)``.

        Raises:
            UsageError: If an answer is not a token number.
        """
        strange = next((a for a in answers if not (a.isascii() and a.isdigit())), None)
        if strange is not None:
            raise UsageError(
                "not every answer is a token",
                expected="tokens by number, as `Backbone.unit_rows` writes them",
                found=repr(strange)[:40],
            )
        return torch.tensor([int(a) for a in answers], dtype=torch.int64)

    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the tokens' numbers ``(N,)``, as text."""
        return tuple(map(str, targets.tolist()))

    def nats(self, output: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return −log p of each row's token ``(N,)``."""
        target = self.targets([r.label for r in rows])
        return -output.gather(1, target[:, None])[:, 0].clamp_min(TINY).double().log()

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return one class for all: the tokens of a domain are not classes."""
        return ("",) * len(answers)

    @property
    def scorer(self) -> Scorer | None:
        """None: tokens are measured by bits."""
        return None

    def places(self, answers: Sequence[str], labels: Sequence[str]) -> Tensor:
        """Return the tokens' numbers ``(N,)``."""
        return self.targets(answers)

    def labels_in(self, answers: Sequence[str]) -> set[str]:
        """Return the empty set: the answers are the texts' own tokens, and labels are ignored."""
        return set()
