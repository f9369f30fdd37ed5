"""Draw every router kind over the simplex of traffic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...registry.errors import MissingError, UsageError
from .mixtures import MixtureSweep, RouterMixtures


def draw_mixtures(sweep: MixtureSweep, path: Path) -> None:
    """Draw regret and accuracy of every router kind: range, middle 90 %, uniform traffic.

    Args:
        sweep: What `sweep_mixtures` returned.
        path: The picture; its suffix says of which kind, e.g. ``.svg`` or ``.png``.

    Raises:
        MissingError: If matplotlib is not installed.
        UsageError: If pictures of this kind cannot be written, or not there.
    """
    try:
        import matplotlib as mpl
    except ImportError as e:
        hint = "pip install 'redhost[plot]'"
        raise MissingError("a picture needs matplotlib", hint=hint) from e
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    height = 1.5 + 0.3 * len(sweep.routers)
    with mpl.rc_context({"svg.hashsalt": "mixtures", "font.size": 9}):
        figure, axes = plt.subplots(1, 2, sharey=True, layout="constrained", figsize=(8, height))
        for place, router in enumerate(sweep.routers.values()):
            _row(axes, place, router)
        axes[0].set_yticks(range(len(sweep.routers)), list(sweep.routers))
        axes[0].invert_yaxis()
        axes[0].set_xlabel("regret, nats")
        axes[1].set_xlabel("accuracy")
        figure.suptitle("all mixtures (thin), 90 % of them (thick), domains alike (dot)")
        try:
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
