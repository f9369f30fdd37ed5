"""What `redhost evaluate` measures and draws where it is asked for more than its table.

The host makes an `Extras` where ``--outside``, ``--mixtures``, ``--plot``, ``--curves``,
``--labels`` or ``--routing`` is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from redhost.commands.receipts import SHORTLIST, SHOWN, points
from redhost.commands.tables import table
from redhost.core.evaluation.evaluate import Evaluation
from redhost.core.host import Host
from redhost.core.model.composed import answers_labels
from redhost.core.receipt import Health
from redhost.core.types import Progress, Row, as_list
from redhost.registry.errors import UsageError
from redhost_report.figures import (
    draw_confusion,
    draw_mixtures,
    draw_reliability,
    require_matplotlib,
)
from redhost_report.mixtures import MixtureSweep, sweep_mixtures
from redhost_report.ood import OODReport, evaluate_ood

__all__ = ["Extras", "mixtures", "outside"]


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What was asked for.

    Attributes:
        outside: Texts outside every domain; None for no report on such.
        mixtures: Whether every router kind is judged under every mixture of domains.
        plot: The file for the confusion of labels, or with `mixtures` for the mixtures.
        curves: The file for accuracy over confidence.
        labels: Whether the scores of every label are printed.
        routing: Whether it is printed how weights are spread.
    """

    outside: Sequence[str] | None = None
    mixtures: bool = False
    plot: str | None = None
    curves: str | None = None
    labels: bool = False
    routing: bool = False

    def __post_init__(self) -> None:
        if self.plot is not None or self.curves is not None:
            require_matplotlib()  # checked before anything is computed

    def measure(
        self, host: Host, rows: Sequence[Row] | None, *, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Return what is measured, by its key in the JSON of `redhost evaluate`."""
        measured: dict[str, Any] = {}
        if self.outside is not None:
            measured["outside"] = outside(host, self.outside, rows, progress=progress)
        if self.mixtures:
            measured["mixtures"] = mixtures(host, rows, progress=progress)
        return measured

    def draw(self, result: Evaluation, measured: Mapping[str, Any]) -> None:
        """Draw the figures, of an evaluation and of what `measure` returned.

        Raises:
            UsageError: If there is nothing to draw, or a file cannot be written.
        """
        if self.plot is not None:
            _draw(result, measured.get("mixtures"), Path(self.plot))
        if self.curves is not None:
            _draw_curves(result, Path(self.curves))

    def show(self, result: Evaluation, measured: Mapping[str, Any]) -> None:
        """Print more of an evaluation, and what `measure` returned, for people."""
        if self.labels and result.labels is not None:
            _print_labels(result)
        if self.routing and result.routing is not None:
            _print_health(result.routing)
        if "mixtures" in measured:
            _print_mixtures(measured["mixtures"])
        if "outside" in measured:
            _print_outside(measured["outside"])


def mixtures(
    host: Host,
    rows: Iterable[Row] | None = None,
    *,
    kinds: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> MixtureSweep:
    """Evaluate every router kind under every mixture of traffic over the experts' domains.

    Args:
        host: The host of the current generation.
        rows: Any iterable of labelled rows; by default the backbone's own held-out rows.
        kinds: Router kinds besides the generation's own; by default every one for whole texts.
        progress: Called with (texts encoded, texts to encode).

    Raises:
        MissingError: If no rows are given and the backbone ships none.
        UsageError: If the backbone does not answer labels, or fewer than two domains have rows.
    """
    composed = host.composed
    answers_labels(composed, "mixtures of traffic")
    return sweep_mixtures(
        composed,
        composed.evaluation_rows(rows),
        encode=host.encoder(composed, progress=progress),
        plugins=host.plugins,
        kinds=kinds,
    )


def outside(
    host: Host,
    texts: str | Iterable[str],
    rows: Iterable[Row] | None = None,
    *,
    progress: Progress | None = None,
) -> OODReport:
    """Report how often the current generation declines out-of-distribution texts.

    Args:
        host: The host of the current generation.
        texts: Texts from a source that is in no expert's data and in no background card.
        rows: Rows of the experts' domains; by default the backbone's held-out rows.
        progress: Called with (texts encoded, texts to encode).

    Raises:
        MissingError: If no rows are given and the backbone ships none.
        UsageError: If the composition cannot decline, or the backbone generates text.
    """
    texts, composed = as_list(texts, str, "text"), host.composed
    answers_labels(composed, "texts from outside")
    encode = host.encoder(composed, progress=progress)
    return evaluate_ood(composed, texts, composed.evaluation_rows(rows), encode=encode)


def _draw(result: Evaluation, sweep: MixtureSweep | None, path: Path) -> None:
    if sweep is not None:
        draw_mixtures(sweep, path)
    elif result.confusion is not None:
        draw_confusion(result.confusion, path)
    else:
        raise UsageError("there is nothing to draw", expected="a backbone that answers labels")


def _draw_curves(result: Evaluation, path: Path) -> None:
    if result.reliability is None:
        raise UsageError("there is nothing to draw", expected="a backbone that answers labels")
    draw_reliability(result.reliability, path)


def _print_labels(result: Evaluation) -> None:
    """Print every label's scores; if there are many, only those with the lowest F1."""
    scores, confusion = result.labels or {}, result.confusion or {}
    names = sorted(scores, key=lambda y: scores[y].f1)[:SHORTLIST]
    rows = []
    for name in sorted(names) if len(scores) > SHOWN else scores:
        score = scores[name]
        confused = {a: n for a, n in confusion.get(name, {}).items() if a != name}
        most = max(confused, key=confused.__getitem__, default=None)
        taken = "" if most is None else f"{most} ({confused[most]})"
        cells = (points(x) or "n/a" for x in (score.precision, score.recall, score.f1))
        rows.append((name, score.rows, *cells, taken))
    head = ("label", "rows", "precision", "recall", "F1", "most often taken for")
    table(f"labels, macro F1 {points(result.macro_f1)}", head, rows)
    if len(scores) > SHOWN:
        click.echo(f"{len(scores)} labels, those of the lowest F1 are shown. All of them: --json")


def _print_health(health: Health) -> None:
    rows = [
        (c, f"{used:.3f}", f"{health.loudness[c]:.2f}" if c in health.loudness else "")
        for c, used in health.usage.items()
    ]
    table(f"routes of {health.rows} rows", ("column", "mean weight", "loudness at home"), rows)
    apart = "" if health.distance is None else f", answers {health.distance:.2f} apart"
    click.echo(
        f"usage entropy {health.entropy:.3f} (rows' own {health.expected_entropy:.3f}){apart}"
    )
    for warning in health.warnings:
        click.echo(f"warning    {warning}")


def _print_mixtures(sweep: MixtureSweep) -> None:
    rows = [
        (
            kind,
            f"{r.worst.regret:.4f}",
            r.worst_domain,
            f"{r.regrets[2]:.4f}",
            f"{r.uniform.regret:.4f}",
            points(r.worst.accuracy),
            points(r.uniform.accuracy),
        )
        for kind, r in sorted(sweep.routers.items(), key=lambda pair: pair[1].worst.regret)
    ]
    head = ("router", "worst regret", "at", "95 % of mixtures", "uniform")
    title = "every mixture of traffic: nats above the domains' own experts, and accuracy"
    table(title, (*head, "worst accuracy", "uniform"), rows)


def _print_outside(ood: OODReport) -> None:
    click.echo(
        f"outside: {ood.declined:.1%} of {ood.rows} texts declined, "
        f"{ood.declined_inside:.1%} of the experts' own; AUROC {ood.auroc:.3f}"
    )
