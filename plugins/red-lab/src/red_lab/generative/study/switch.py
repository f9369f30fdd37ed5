"""Documents that switch their domain half-way, and the number of tokens until a router follows.

A document is half a passage of one domain, then half a passage of another. Rows are numbered by the
tokens of the second half before them, so row 0 is predicted from the first half alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.generative.documents import cut
from red_lab.generative.study.context import PassageTokens, StudyContext
from red_lab.generative.study.posterior import bayes_gate
from red_lab.generative.study.tables import answer_log_p

__all__ = ["AFTER", "BEFORE", "Switch", "follow", "switched", "tokens_until"]

BEFORE, AFTER = 16, 48
"""Tokens before and after the switch in the trajectory."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One document.

    Attributes:
        first: The domain of its first half.
        second: The domain of its second half.
        head: The first half.
        tail: The second half.
    """

    first: str
    second: str
    head: str
    tail: str


def switched(context: StudyContext) -> list[Switch]:
    """Return documents for every ordered pair of domains, made of test passages."""
    return [
        Switch(
            first=one,
            second=other,
            head=_half(_turn(context.texts(one, "test"), n))[0],
            tail=_half(_turn(context.texts(other, "test"), -1 - n))[1],
        )
        for one, other in itertools.permutations(context.domains, 2)
        for n in range(context.setting.switches)
    ]


def tokens_until(alpha: Tensor, owner: int) -> int | None:
    """Return the first row at which a column has the largest weight; None if there is none."""
    own = (alpha.argmax(dim=1) == owner).nonzero()
    return int(own[0, 0]) if len(own) else None


def follow(
    context: StudyContext, experts: Mapping[str, redhost.Expert], gates: Mapping[str, nn.Module]
) -> dict[str, Any]:
    """Return, by router, the tokens until it follows, its weights around the switch, and bits.

    Args:
        context: The texts.
        experts: The experts by domain.
        gates: The routers by name; `bayes` is added.
    """
    curves = {name: _SwitchCurves() for name in (*gates, "bayes")}
    bits = dict.fromkeys(("base", "own expert", *curves), 0.0)
    size = 0
    for document in switched(context):
        tokens = context.tokens([document.head + document.tail])
        place = context.count(document.head)
        log_p = torch.stack([answer_log_p(context, tokens, experts[d]) for d in context.domains], 1)
        own, left = context.domains.index(document.second), context.domains.index(document.first)
        bits["base"] -= float(answer_log_p(context, tokens, None)[place:].sum())
        bits["own expert"] -= float(log_p[place:, own].sum())
        for name, log_gate in _weights(context, tokens, log_p, gates).items():
            bits[name] -= float(torch.logsumexp(log_gate + log_p, dim=1)[place:].sum())
            curves[name].add(log_gate.exp(), place=place, own=own, left=left)
        size += len(document.tail.encode())
    return {
        "documents": len(switched(context)),
        "bits": {name: nats / math.log(2) / size for name, nats in bits.items()},
        "routers": {name: t.summary() for name, t in curves.items()},
    }


def _weights(
    context: StudyContext, tokens: PassageTokens, log_p: Tensor, gates: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """Return log γ ``(T, K)`` of every router on one document."""
    router_input, count = context.router_input(tokens), log_p.shape[1]
    with torch.no_grad():
        made = {name: torch.log_softmax(gate(router_input), dim=1) for name, gate in gates.items()}
    return {**made, "bayes": bayes_gate([log_p], torch.full((count,), 1 / count))[0]}


class _SwitchCurves:
    """The weights of one router on all documents."""

    def __init__(self) -> None:
        self.until: list[int | None] = []
        self.old: list[Sequence[float]] = []
        self.new: list[Sequence[float]] = []

    def add(self, alpha: Tensor, *, place: int, own: int, left: int) -> None:
        self.until.append(tokens_until(alpha[place:], own))
        for curve, column in ((self.old, left), (self.new, own)):
            window = alpha.new_full((BEFORE + AFTER,), math.nan)
            known = range(max(0, place - BEFORE), min(len(alpha), place + AFTER))
            for row in known:
                window[row - place + BEFORE] = alpha[row, column]
            curve.append(window.tolist())

    def summary(self) -> dict[str, Any]:
        """Return median and 90 % quantile of tokens to follow (None: never), and mean weights."""
        never = math.inf
        until = sorted(never if u is None else u for u in self.until)
        return {
            "median": _finite(until[math.ceil(0.5 * len(until)) - 1]),
            "most": _finite(until[math.ceil(0.9 * len(until)) - 1]),
            "never": sum(u == never for u in until) / len(until),
            "old": _means(self.old),
            "new": _means(self.new),
        }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _means(rows: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the mean over documents at every position; None where no document is long enough."""
    found = torch.tensor(rows).nanmean(0).tolist()
    return [None if math.isnan(x) else x for x in found]


def _turn(texts: Sequence[str], place: int) -> str:
    """Return the text at an index modulo the number of texts."""
    return texts[place % len(texts)]


def _half(text: str) -> tuple[str, str]:
    """Return a text's two halves, cut after a line or a word."""
    chunks = cut(text, size=max(1, len(text) // 8))
    middle = max(1, len(chunks) // 2)
    return "".join(chunks[:middle]), "".join(chunks[middle:]) or text
