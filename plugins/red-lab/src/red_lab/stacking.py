"""`redhost lab stacking`: the effect of removing or updating an expert that others are stacked on.

Growth on a frozen substrate (seed 002's related work) puts every new part on top of the earlier
parts. Five range experts are trained in this way, each on the states after all earlier experts, and
once more side by side, as on the bus:

    stacked        h_k = h_{k−1} + Δ_k(LayerNorm(h_{k−1})),   h_0 = h
    side by side   ĥ = h + Σ_k Δ_k(LayerNorm(h))

Then the first expert is removed, or replaced by a retrained one, and the questions of the other
four are answered. There is no router: the two ways differ only in the experts' inputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from red_lab.metrics import write_results
from red_lab.options import out_option, seeds_option

if TYPE_CHECKING:
    from torch import Tensor

    import redhost
    from red_lab.ranges import RangeTrainingContext

__all__ = ["PENALTIES", "WAYS", "Way", "measure", "page", "run_through", "stacking"]

Way = Literal["stacked", "side by side"]

WAYS: tuple[Way, ...] = ("stacked", "side by side")

PENALTIES = (1e-2, 0.0)
"""Weights of the off-domain penalty: that of the range experts, or zero."""


@click.command()
@seeds_option(3)
@out_option("stacking")
def stacking(*, seeds: int, out: Path) -> None:
    """Remove and retrain an expert that others are stacked on, and one that is side by side."""
    click.echo(write_results(measure(seeds=seeds), out, page=page))


def run_through(
    h: Tensor, experts: Sequence[redhost.Expert], *, way: Way, norm: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return h after all experts, ``(B, D)``.

    Args:
        h: Features of the backbone ``(B, D)``.
        experts: In the order in which they were trained.
        way: Whether they are stacked or side by side.
        norm: h → z.
    """
    moved = h
    for expert in experts:
        moved = moved + expert(norm(moved if way == "stacked" else h))
    return moved


def measure(*, seeds: int) -> dict[str, Any]:
    """Train all experts in both ways, and answer before and after the first one changes."""
    import torch

    from red_lab.bench.peers.domains import SPLIT
    from red_lab.hotswap_measure import shipped
    from red_lab.progress import Bar
    from red_lab.ranges import open_range_training

    torch.set_num_threads(1)
    context = open_range_training(shipped()[0], SPLIT)
    bar, rows = Bar("stacking", total=len(PENALTIES) * seeds), []
    subject = _Subject(context)
    for penalty in PENALTIES:
        found: dict[Way, list[dict[str, float]]] = {way: [] for way in WAYS}
        for seed in range(seeds):
            for way in WAYS:
                found[way].append(subject.answered(way, penalty=penalty, seed=seed))
            bar.update(PENALTIES.index(penalty) * seeds + seed + 1)
        rows += [{"penalty": penalty, "way": way, **_spread(found[way])} for way in WAYS]
    return {
        "schema": "red-lab.stacking/1",
        "seeds": seeds,
        "rows": len(subject.answers),
        "others": int(subject.others.sum()),
        "without experts": subject.right(context.features(subject.texts)),
        "systems": rows,
    }


def _spread(found: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean, minimum and maximum over seeds."""
    return {
        key: {
            "mean": statistics.fmean(f[key] for f in found),
            "low": min(f[key] for f in found),
            "high": max(f[key] for f in found),
        }
        for key in found[0]
    }


@dataclass(frozen=True)
class _Subject:
    """The range experts' rows, on the shipped backbone."""

    context: RangeTrainingContext

    @cached_property
    def names(self) -> list[str]:
        from red_lab.arithmetic import RANGES

        return [name for name, _, _ in RANGES]

    @cached_property
    def _test(self) -> Sequence[Any]:
        from red_lab.arithmetic import rows

        return rows(self.context.split.test_pairs())

    @cached_property
    def texts(self) -> list[str]:
        return [r.text for r in self._test]

    @cached_property
    def answers(self) -> Tensor:
        """Labels of the test questions, ``(N,)``."""
        import torch

        return torch.tensor([self.context.backbone.labels.index(r.label) for r in self._test])

    @cached_property
    def others(self) -> Tensor:
        """Which test questions are not the first expert's, ``(N,)``."""
        import torch

        return torch.tensor([r.domain != self.names[0] for r in self._test])

    def best(self, h: Tensor) -> Tensor:
        """Return the answers from states, ``(N,)``."""
        return (h @ self.context.classifier.T).argmax(-1)

    def right(self, h: Tensor) -> float:
        """Return the accuracy on the others' questions."""
        return float((self.best(h) == self.answers)[self.others].float().mean())

    def answered(self, way: Way, *, penalty: float, seed: int) -> dict[str, float]:
        """Train the experts in turn; return the other experts' accuracy and changed answers."""
        import torch

        experts: list[redhost.Expert] = []
        for name in self.names:
            experts.append(self._train(name, experts, way=way, penalty=penalty, seed=seed))
        first = self._train(self.names[0], [], way=way, penalty=penalty, seed=seed + 1000)
        h = self.context.features(self.texts)
        with torch.no_grad():
            whole, without, updated = (
                run_through(h, some, way=way, norm=self.context.norm)
                for some in (experts, experts[1:], [first, *experts[1:]])
            )

        def changed(h: Tensor) -> float:
            return float((self.best(h) != self.best(whole))[self.others].float().mean())

        return {
            "all": self.right(whole),
            "withdrawn": self.right(without),
            "updated": self.right(updated),
            "changed by withdrawal": changed(without),
            "changed by update": changed(updated),
        }

    def _train(
        self, name: str, before: Sequence[redhost.Expert], *, way: Way, penalty: float, seed: int
    ) -> redhost.Expert:
        """Train one expert, on the states after the earlier experts if it is stacked on them."""
        import torch

        from red_lab.arithmetic import range_of
        from red_lab.ranges import EXPERT, role_rows
        from redhost.core.training.expert import ExpertRows, train_expert

        context = self.context
        data = role_rows(context.split, "train", name)
        below = before if way == "stacked" else []

        def read(texts: Sequence[str]) -> Tensor:
            with torch.no_grad():
                return run_through(context.features(texts), below, way=way, norm=context.norm)

        h = read([r.text for r in data])
        return train_expert(
            ExpertRows(h=h, z=context.norm(h), answers=[r.label for r in data]),
            context.backbone,
            labels=[y for y in context.backbone.labels if range_of(int(y)) == name],
            settings=replace(EXPERT, seed=seed, off_domain=penalty),
            background=context.norm(read([r.text for r in context.background if r.domain != name])),
        ).expert.requires_grad_(False)


COLUMNS = {
    "all": "all five",
    "withdrawn": "first removed",
    "updated": "first retrained",
    "changed by withdrawal": "answers changed by removal",
    "changed by update": "answers changed by retraining",
}


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.stacking/1``."""
    lines = [
        "# Experts stacked on experts",
        "",
        "Written by `redhost lab stacking` from `metrics.json`; do not edit.",
        "",
        "Five range experts on the tiny backbone are trained one after the other on the states "
        "after all earlier experts (stacked), or each on the backbone's own states (side by side, "
        "as on the bus). All have weight 1, and there is no router. Then the first expert is "
        "removed, or retrained with another random seed. The table gives the accuracy on the "
        f"{metrics['others']} test questions of the other four ranges, and the share of their "
        f"answers that changed: means of {metrics['seeds']} random seeds, in brackets minimum and "
        f"maximum. The accuracy of the backbone alone is {metrics['without experts']:.3f}.",
        "",
        f"| off-domain penalty | experts | {' | '.join(COLUMNS.values())} |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for row in metrics["systems"]:
        cells = (
            f"{row[c]['mean']:.3f} ({row[c]['low']:.3f} … {row[c]['high']:.3f})" for c in COLUMNS
        )
        lines.append(f"| {row['penalty']:g} | {row['way']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
