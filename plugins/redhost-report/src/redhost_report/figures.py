"""Figures of evaluations: mixtures of traffic, confusion tables, and calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redhost.core.evaluation.reliability import Reliability
from redhost.core.label_scores import Confusion
from redhost.registry.errors import MissingError, UsageError
from redhost_report.mixtures import MixtureSweep, RouterMixtures


def draw_mixtures(sweep: MixtureSweep, path: Path) -> None:
    """Draw regret and accuracy of each router kind: range, middle 90 %, uniform traffic.

    Args:
        sweep: The result of `sweep_mixtures`.
        path: The figure's file; its suffix sets the format, e.g. ``.svg`` or ``.png``.

    Raises:
        MissingError: If matplotlib is not installed.
        UsageError: If the format is not supported, or the file cannot be written.
    """
    height = 1.5 + 0.3 * len(sweep.routers)
    with _figure(path, columns=2, size=(8, height)) as (figure, axes):
        for place, router in enumerate(sweep.routers.values()):
            _row(axes, place, router)
        axes[0].set_yticks(range(len(sweep.routers)), list(sweep.routers))
        axes[0].invert_yaxis()
        axes[0].set_xlabel("regret, nats")
        axes[1].set_xlabel("accuracy")
        figure.suptitle("all mixtures (thin), 90 % of them (thick), domains alike (dot)")


def draw_confusion(confusion: Confusion, path: Path) -> None:
    """Draw a confusion table: answers by label, as shares of the rows with that label.

    Args:
        confusion: Number of rows by label and answer, as in an `Evaluation`.
        path: As for `draw_mixtures`.

    Raises:
        MissingError: If matplotlib is not installed.
        UsageError: If the format is not supported, or the file cannot be written.
    """
    names = sorted({*confusion, *(answer for row in confusion.values() for answer in row)})
    counts = [[confusion.get(y, {}).get(a, 0) for a in names] for y in names]
    side = min(2 + 0.3 * len(names), 40)
    with _figure(path, columns=1, size=(side, side)) as (_, [ax]):
        ax.imshow(
            [[n / (sum(row) or 1) for n in row] for row in counts], cmap="Blues", vmin=0, vmax=1
        )
        ax.set_xticks(range(len(names)), names, rotation=90)
        ax.set_yticks(range(len(names)), names)
        ax.set_xlabel("answer")
        ax.set_ylabel("label")
        for y, row in enumerate(counts):
            for x, n in enumerate(row):
                if n:
                    colour = "white" if 2 * n > sum(row) else "black"
                    ax.text(x, y, str(n), ha="center", va="center", color=colour, fontsize=7)


def draw_reliability(found: Reliability, path: Path) -> None:
    """Draw accuracy over confidence, and over the share of rows that is answered.

    Args:
        found: The reliability of an `Evaluation`.
        path: As for `draw_mixtures`.

    Raises:
        MissingError: If matplotlib is not installed.
        UsageError: If the format is not supported, or the file cannot be written.
    """
    with _figure(path, columns=2, size=(8, 4)) as (_, [sure, covered]):
        most = max(b.rows for b in found.bins)
        sure.plot([0, 1], [0, 1], color="grey", linewidth=1)
        sure.scatter(
            [b.confidence for b in found.bins],
            [b.accuracy for b in found.bins],
            s=[10 + 90 * b.rows / most for b in found.bins],
        )
        sure.set_xlabel(f"confidence (ECE {found.ece:.3f})")
        sure.set_ylabel("accuracy")
        covered.plot([c.share for c in found.coverage], [c.accuracy for c in found.coverage])
        covered.set_xlabel("share of rows answered, the most confident first")
        covered.set_ylim(0, 1.02)


def require_matplotlib() -> Any:
    """Return matplotlib.

    Raises:
        MissingError: If it is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as e:
        hint = "pip install 'redhost[plot]'"
        raise MissingError("a picture needs matplotlib", hint=hint) from e
    return mpl


@contextmanager
def _figure(
    path: Path, *, columns: int, size: tuple[float, float]
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield a figure and its axes; the figure is saved when the block ends."""
    mpl = require_matplotlib()
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "redhost", "font.size": 9}):
        figure, axes = plt.subplots(
            1, columns, sharey=True, layout="constrained", figsize=size, squeeze=False
        )
        try:
            yield figure, axes[0]
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except (OSError, ValueError) as e:
            raise UsageError(f"{path} cannot be written", found=str(e).split("\n")[0]) from e
        finally:
            plt.close(figure)


def _row(axes: Sequence[Any], place: int, router: RouterMixtures) -> None:
    corners = router.corners.values()
    for ax, values, (low, _, high), middle in (
        (axes[0], [c.regret for c in corners], router.regrets, router.uniform.regret),
        (axes[1], [c.accuracy for c in corners], router.accuracies, router.uniform.accuracy),
    ):
        ax.plot([min(values), max(values)], [place, place], color="C0", linewidth=1)
        ax.plot([low, high], [place, place], color="C0", linewidth=5, solid_capstyle="butt")
        ax.plot([middle], [place], "o", color="C1", markersize=5)
