"""Declining texts and answering with label sets, with a guarantee: split conformal prediction.

Gate rows were used to train no router, and for an expert only to fit its temperature T, in tasks
with mutually exclusive labels (`Recipe._calibrate`). If the experts' own future texts are
exchangeable with n gate rows of scores s_1 … s_n, then (Vovk et al. 2005, section 4.2):

    t = the ⌊(n + 1) ε⌋-th smallest of s_1 … s_n        P(s_new < t) ≤ ε, for any scores

Strictly, this holds for scores that no gate row has influenced. T is one number per expert, fitted
to the fit and gate rows of its card together. Gate rows are therefore exchangeable with future
texts except for their influence on T, whose size was not measured.

A text is declined if its familiarity is below t; a label is in a text's set if p(y|x) is at least t
(least ambiguous sets, Sadinle et al. 2019). Scores are compared within a group, which is the texts
with the same highest-weighted expert (Mondrian, ibid., section 4.5). Experts with fewer rows than ε
requires form one group, with as many of the next larger ones as it takes. If all rows together are
too few, t = −∞: nothing is declined and every label is in the set.

    familiarity(x) = log max_y p(y|x) / (1 − max_y p(y|x)) + log p(z) / √(D / 2)

log p(z) is added for routers that estimate a density, in units of its standard deviation under a
Gaussian. `none` is not among the y. One expert's own answer is declined likewise: with p_i(y|x) and
log p_i(z), against the scores of its own gate rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..bus.bus import Bus
from ..label_sets import DECLINED
from ..types import Row

CALIBRATION = "calibration.safetensors"
"""The file name of a generation's `Calibration`."""


def rows_needed(share: float) -> int:
    """Return the fewest rows for which a share ε can be guaranteed: ⌈1 / ε⌉ − 1."""
    return math.ceil(1 / share - 1e-9) - 1


def threshold(scores: Tensor, share: float) -> float:
    """Return t, the ⌊(n + 1) ε⌋-th smallest of the scores ``(n,)``; −∞ if that index is 0."""
    rank = math.floor((len(scores) + 1) * share + 1e-9)
    return float(scores.double().kthvalue(rank).values) if rank else -math.inf


def too_few(rows: Mapping[str, int], share: float) -> tuple[str, ...]:
    """Return a warning for each expert that answers fewer rows than a share requires.

    Args:
        rows: The number of gate rows that each expert answers, by expert.
        share: ε.
    """
    needed = rows_needed(share)
    few = {i: n for i, n in rows.items() if n < needed}
    so = "it shares a threshold" if sum(rows.values()) >= needed else "there is no threshold"
    return tuple(
        f"{i!r} answers {n} gate row{'' if n == 1 else 's'}, "
        f"{needed} are needed for {100 * share:g} %: {so}"
        for i, n in few.items()
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Scores of G gate rows.

    Attributes:
        group: The index of each row's highest-weighted expert, ``(G,)``.
        likelihood: p(y|x) of each row's own label ``(G,)``; None if answers are not labels.
        familiarity: ``(G,)``; None if the composition declines nothing.
        owner: For rows of an expert's own card, its index, ``(O,)``; None if `own` is None.
        own: The familiarity of these rows to that expert alone, ``(O,)``; None if the composition
            declines nothing.
    """

    group: Tensor
    likelihood: Tensor | None = None
    familiarity: Tensor | None = None
    owner: Tensor | None = None
    own: Tensor | None = None

    @classmethod
    def load(cls, data: bytes) -> Calibration:
        """Parse the bytes that `save` wrote."""
        return cls(**safetensors.torch.load(data))

    def save(self) -> bytes:
        """Return the bytes of the file."""
        tensors = {n: t.contiguous() for n, t in vars(self).items() if t is not None}
        return safetensors.torch.save(tensors)

    def thresholds(
        self, scores: Tensor, share: float, *, groups: int, group: Tensor | None = None
    ) -> Tensor:
        """Return t of each group, float64, for scores ``(G,)``.

        Args:
            scores: The scores.
            share: ε.
            groups: The number of groups.
            group: The group of each row ``(G,)``; by default its highest-weighted expert.
        """
        group = self.group if group is None else group
        rows, needed = group.bincount(minlength=groups), rows_needed(share)
        by_group = torch.split(scores[group.argsort()], rows.tolist())
        fewest, small = rows.argsort(stable=True), int((rows < needed).sum())
        while 0 < small < groups and rows[fewest[:small]].sum() < needed:
            small += 1
        t = torch.tensor([threshold(s, share) for s in by_group], dtype=torch.float64)
        if small:
            pooled = torch.cat([by_group[k] for k in fewest[:small]])
            t[fewest[:small]] = threshold(pooled, share)
        return t

    def own_thresholds(self, share: float, bus: Bus) -> list[float] | None:
        """Return t of each expert's own answers; None if their scores are not recorded."""
        if self.own is None:
            return None
        return self.thresholds(self.own, share, groups=len(bus.ids), group=self.owner).tolist()

    def rows(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the number of rows that each expert answers."""
        return dict(zip(ids, self.group.bincount(minlength=len(ids)).tolist(), strict=True))


def groups_of(bus: Bus, alpha: Tensor) -> Tensor:
    """Return the highest-weighted expert of each row ``(N,)``, for weights ``(N, K)``."""
    return alpha[:, : len(bus.ids)].argmax(1)


def labels_of(bus: Bus, p: Tensor) -> Tensor:
    """Return the probabilities ``(N, L)`` with zero for `DECLINED`, unless it is no output."""
    return p if bus.shared_labels else torch.nn.functional.pad(p[:, 1:], (1, 0))


def familiarity(bus: Bus, h: Tensor, p: Tensor) -> Tensor:
    """Return how similar texts are to the experts' own texts, float64 ``(N,)``.

    Args:
        bus: The bus.
        h: Features ``(N, D)``.
        p: The bus output for them ``(N, L)``.

    Raises:
        UsageError: If neither answers nor router allow an estimate.
    """
    z = bus.layout.router_input(bus.norm(h))
    return _familiarity(bus, z, labels_of(bus, p), bus.router.log_density(z))


def own_familiarities(bus: Bus, z: Tensor) -> Callable[[Tensor, int], Tensor]:
    """Return a function that measures how similar texts are to one expert's own texts.

    Args:
        bus: The bus.
        z: Bus vectors ``(N, D)``, or z̃.

    Returns:
        The expert's own answers ``(N, L_i)`` and its column → float64 ``(N,)``.

    Raises:
        UsageError: When it is called, if neither answers nor router allow an estimate.
    """
    z = bus.layout.router_input(z)
    densities = bus.router.log_densities(z)

    def of(p: Tensor, column: int) -> Tensor:
        return _familiarity(bus, z, p, None if densities is None else densities[:, column])

    return of


def _familiarity(bus: Bus, z: Tensor, p: Tensor, density: Tensor | None) -> Tensor:
    """Return the sum of the terms of p ``(N, L)`` and of log p(z) ``(N,)`` that are available."""
    terms = list[Tensor]()
    if (odds := bus.task.head.log_odds(p)) is not None:
        terms.append(odds)
    if density is not None:
        terms.append(density.double() / math.sqrt(z.shape[1] / 2))
    if not terms or not bus.task.unit.whole:
        raise UsageError(
            "this composition cannot decline",
            expected="labels to answer with, or a router with a density per expert",
            found=bus.task.name,
            hint="Leave out --decline, or use --router quadratic."
            if bus.task.unit.whole
            else "Leave out --decline.",
        )
    return torch.stack(terms).sum(0)


def calibrate(
    bus: Bus, h: Tensor, p: Tensor, alpha: Tensor, rows: Sequence[Row], *, decline: bool
) -> Calibration:
    """Return the scores of gate rows that the bus has answered.

    Args:
        bus: The bus.
        h: Features ``(N, D)``.
        p: The bus output ``(N, L)``.
        alpha: The weights ``(N, K)``.
        rows: The rows.
        decline: Whether to compute familiarity.
    """
    likelihood = _likelihood(bus, p, rows) if bus.task.one_label else None
    if not decline:
        return Calibration(group=groups_of(bus, alpha), likelihood=likelihood)
    owner, familiarities = list[Tensor](), list[Tensor]()
    for column, i in enumerate(bus.ids):
        mine = torch.tensor([r.domain == i for r in rows], dtype=torch.bool)
        z = bus.norm(h[mine])
        familiarities.append(own_familiarities(bus, z)(bus.own_answer(h[mine], z, column), column))
        owner.append(torch.full((len(z),), column))
    return Calibration(
        group=groups_of(bus, alpha),
        likelihood=likelihood,
        familiarity=familiarity(bus, h, p),
        owner=torch.cat(owner),
        own=torch.cat(familiarities),
    )


def _likelihood(bus: Bus, p: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return the probability ``(N,)`` of each row's label: 0 for one that the bus does not have.

    Rows may come from an expert's next version, which may have more labels.
    """
    target = bus.task.head.places([r.label for r in rows], bus.labels)
    assert target is not None  # noqa: S101  (callers ask `Task.one_label`)
    return p.gather(1, target.clamp(min=0)[:, None])[:, 0] * (target >= 0)


def label_sets(
    bus: Bus, p: Tensor, alpha: Tensor, *, calibration: Calibration, share: float
) -> list[tuple[str, ...]]:
    """Return each row's label set, the most probable first.

    The most probable label is always in the set.

    Args:
        bus: The bus.
        p: The bus output ``(N, L)``.
        alpha: The weights ``(N, K)``.
        calibration: Scores of gate rows.
        share: ε: how often the right label may be missing.

    Raises:
        UsageError: If answers are not labels.
    """
    if calibration.likelihood is None:
        raise UsageError("there are no label sets of this composition", expected="labels")
    t = calibration.thresholds(calibration.likelihood, share, groups=len(bus.ids))
    p = labels_of(bus, p).double()
    inside = p >= t.to(p.device)[groups_of(bus, alpha)][:, None]
    inside.scatter_(1, p.argmax(1, keepdim=True), value=True)
    if not bus.shared_labels:
        inside[:, bus.labels.index(DECLINED)] = False
    sets = []
    for row, chosen in zip(p, inside, strict=True):
        places = chosen.nonzero()[:, 0]
        places = places[row[places].argsort(descending=True, stable=True)]
        sets.append(tuple(bus.labels[int(n)] for n in places))
    return sets
