"""`redhost lab robust` as a study: finite games, and seeds of uneven traffic."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from red_lab.intervals import Array, over_seeds
from red_lab.metrics import drawing
from red_lab.study import Cell, Study

__all__ = ["STUDY", "draw", "robust", "summarise"]

log = logging.getLogger("red_lab")

EPOCHS = {"arithmetic": 12, "text": 20}
"""Fewer than in `redhost lab matched`: six monoliths are trained in every seed."""


def recipe(task: str) -> Any:
    """Return the training settings of a data set: those of `redhost lab matched`, but shorter."""
    from red_lab.matched.systems import ARITHMETIC, TEXT

    usual = {"arithmetic": ARITHMETIC, "text": TEXT}[task]
    return replace(usual, epochs=EPOCHS[task])


def measure_cell(cell: Cell) -> Any:
    """Return the finite games' results, or those of one seed of a data set."""
    from red_lab.matched.data import load
    from red_lab.robust.finite import finite
    from red_lab.robust.measure import measure
    from red_lab.training import one_thread

    if cell.part == "finite":
        return finite()
    problem = load(cell.part, seed=cell.seed, work=cell.work)
    with one_thread():
        return measure(
            problem,
            recipe=recipe(cell.part),
            seed=cell.seed,
            say=lambda what: log.info("robust, %s, seed %d: %s", cell.part, cell.seed, what),
        )


def solve(*, game: str | None, as_json: bool) -> bool:
    """Solve the game of a file and print its certificate; False if none is given.

    Raises:
        redhost.UsageError: If the file cannot be read.
    """
    if game is None:
        return False
    from redhost_robust import solve_json

    import redhost

    try:
        data = sys.stdin.buffer.read() if game == "-" else Path(game).read_bytes()
    except OSError as e:
        raise redhost.UsageError(
            f"{game} cannot be read", expected="a JSON file", found=str(e.strerror)
        ) from e
    solution = solve_json(data)
    if as_json:
        click.echo(json.dumps(solution, indent=2))
        return True
    click.echo(
        f"value {solution['value']:.8f} nats, "
        f"certificate {solution['lower']:.8f} … {solution['upper']:.8f}"
    )
    click.echo("worst mixture " + ", ".join(f"{x:.4f}" for x in solution["lambda"]))
    click.echo(f"{solution['iterations']} iterations; --json also prints the gate")
    return True


Seed = Mapping[str, Any]


def summarise(part: str, measured: Sequence[Seed]) -> Mapping[str, Any]:
    """Return the metrics of the finite games, or of one data set over its seeds."""
    if part == "finite":
        return measured[0]
    scenes = measured[0]["scenes"]
    return {
        "recipe": asdict(recipe(part)),
        "seeds": len(measured),
        "rare": [m["rare"] for m in measured],
        "rows": [m["rows"][0] for m in measured],
        "gate_rows": sum(measured[0]["gate_rows"]),
        "test_rows": sum(measured[0]["test_rows"]),
        "scenes": {
            scene: {
                "systems": {name: _system(measured, scene, name) for name in systems},
                "paired": _paired(measured, scene),
                "mixtures": _mixtures(measured, scene),
            }
            for scene, systems in scenes.items()
        },
        "growth": {name: _curve(measured, name) for name in measured[0]["growth"]},
    }


def _regrets(seed: Seed, scene: str, name: str) -> Array:
    """Return ℓ_k − ref_k on test rows ``(K,)``, nats."""
    loss: Array = np.array(seed["scenes"][scene][name]["loss"])
    return np.asarray(loss - np.array(seed["reference"]))


def _worst(seed: Seed, scene: str, name: str) -> float:
    return float(_regrets(seed, scene, name).max())


def _accuracy(seed: Seed, scene: str, name: str, *, weights: str) -> float:
    """Return the accuracy with equal weight for every domain, or with the traffic's frequencies."""
    each = np.array(seed["scenes"][scene][name]["accuracy"])
    return float(each.mean() if weights == "even" else each @ np.array(seed["frequencies"]))


def _system(measured: Sequence[Seed], scene: str, name: str) -> dict[str, Any]:
    def over(read: Callable[[Seed], float]) -> dict[str, float]:
        return over_seeds([read(m) for m in measured])

    return {
        "worst_regret": over(lambda m: _worst(m, scene, name)),
        "mean_regret": over(lambda m: float(_regrets(m, scene, name).mean())),
        "rare_regret": over(
            lambda m: float(_regrets(m, scene, name)[m["domains"].index(m["rare"])])
        ),
        "worst_loss": over(lambda m: max(m["scenes"][scene][name]["loss"])),
        "accuracy": over(lambda m: _accuracy(m, scene, name, weights="even")),
        "traffic_accuracy": over(lambda m: _accuracy(m, scene, name, weights="traffic")),
        "worst_accuracy": over(lambda m: min(m["scenes"][scene][name]["accuracy"])),
        "seconds": float(np.median([m["scenes"][scene][name]["seconds"] for m in measured])),
    }


def _paired(measured: Sequence[Seed], scene: str) -> dict[str, Any]:
    """Compare the robust router with the other two, seed by seed."""
    paired: dict[str, Any] = {}
    for other in ("average", "balanced"):
        paired[other] = {
            "ratio": over_seeds(
                [_worst(m, scene, "robust") / _worst(m, scene, other) for m in measured]
            ),
            "regret": over_seeds(
                [_worst(m, scene, "robust") - _worst(m, scene, other) for m in measured]
            ),
            **{
                f"{weights}_accuracy": over_seeds(
                    [
                        _accuracy(m, scene, "robust", weights=weights)
                        - _accuracy(m, scene, other, weights=weights)
                        for m in measured
                    ]
                )
                for weights in ("even", "traffic")
            },
        }
    return paired


def _mixtures(measured: Sequence[Seed], scene: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the loss of the robust router and of each monolith under some mixtures of domains.

    Differences of losses are differences of KL(p_λ ‖ ·): the entropy of the mixture is the same.
    The last is the mixture that is worst for the router against that monolith.
    """
    count = len(measured[0]["domains"])
    mixtures: dict[str, dict[str, dict[str, float]]] = {}
    for name in [n for n in measured[0]["scenes"][scene] if n.startswith("monolith")]:
        apart = [
            np.array(m["scenes"][scene]["robust"]["loss"])
            - np.array(m["scenes"][scene][name]["loss"])
            for m in measured
        ]
        rare = [m["domains"].index(m["rare"]) for m in measured]
        frequencies = [np.array(m["frequencies"]) for m in measured]
        mixtures[name] = {
            "traffic": over_seeds([float(a @ f) for a, f in zip(apart, frequencies, strict=True)]),
            "uniform": over_seeds([float(a.sum() / count) for a in apart]),
            "rare domain alone": over_seeds(
                [float(a[k]) for a, k in zip(apart, rare, strict=True)]
            ),
            "worst for the router": over_seeds([float(a.max()) for a in apart]),
            "worst for the monolith": over_seeds([float(a.min()) for a in apart]),
        }
    return mixtures


def _curve(measured: Sequence[Seed], name: str) -> list[dict[str, Any]]:
    points = zip(*(m["growth"][name] for m in measured), strict=False)
    return [
        {
            "rows": point[0]["rows"],
            "units": point[0]["units"],
            "train": over_seeds([p["train"] for p in point]),
            "test": over_seeds([p["test"] for p in point]),
        }
        for point in points
    ]


ROUTERS = (
    "average",
    "balanced",
    "robust",
    "robust, MLP",
    "distilled, linear, game again",
    "distilled, centroid, game again",
)


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Draw worst regrets of every router, the curves over rows and size, and the solver's time."""
    tasks = metrics["tasks"]
    played = {name: results for name, results in tasks.items() if name != "finite"}
    wide = partial(drawing, salt="robust", figsize=(8, 4))
    if played:
        with wide(folder / "regret.svg", ncols=len(played)) as axes:
            _draw_regrets(axes[0], played)
        with wide(folder / "growth.svg", ncols=2, sharey=True) as [[by_rows, by_size]]:
            _draw_growth(by_rows, by_size, played)
    if "finite" in tasks:
        with wide(folder / "curve.svg") as axes:
            _draw_curve(axes[0][0], tasks["finite"]["curve"])


def _draw_regrets(axes: Sequence[Any], tasks: Mapping[str, Any]) -> None:
    for ax, (task, results) in zip(axes, tasks.items(), strict=True):
        for shift, (scene, one) in zip((-0.12, 0.12), results["scenes"].items(), strict=True):
            values = [one["systems"][n]["worst_regret"] for n in ROUTERS]
            middle = [t["mean"] for t in values]
            below = [m - max(t["low"], 1e-3) for m, t in zip(middle, values, strict=True)]
            above = [t["high"] - m for m, t in zip(middle, values, strict=True)]
            places = [k + shift for k in range(len(ROUTERS))]
            label = f"uneven {scene}"
            ax.errorbar(places, middle, yerr=[below, above], fmt="o", capsize=3, label=label)
        ax.set(yscale="log", title=task)
        ax.set_xticks(range(len(ROUTERS)), ROUTERS, rotation=30, ha="right")
    axes[0].set_ylabel("worst domain's regret, nats")
    axes[0].legend()


def _draw_growth(by_rows: Any, by_size: Any, tasks: Mapping[str, Any]) -> None:
    for task, results in tasks.items():
        for part, line in (("test", "-"), ("train", ":")):
            rows, units = results["growth"]["rows"], results["growth"]["units"]
            label = f"{task}, {part} rows"
            over_rows, over_size = ([p[part]["mean"] for p in points] for points in (rows, units))
            by_rows.plot([p["rows"] for p in rows], over_rows, line, label=label)
            by_size.plot(range(len(units)), over_size, line, label=label)
    by_rows.set(xscale="log", xlabel="rows of each domain, linear gate")
    names = ["linear" if not p["units"] else str(p["units"]) for p in units]
    by_size.set_xticks(range(len(names)), names)
    by_size.set_xlabel("hidden units, 100 rows of each domain")
    by_rows.set_ylabel("worst domain's regret, nats")
    by_rows.legend()


def _draw_curve(ax: Any, points: Sequence[Mapping[str, Any]]) -> None:
    for symbols in sorted({p["symbols"] for p in points}):
        own = [p for p in points if p["symbols"] == symbols]
        label = f"|X| = {symbols:,}"
        ax.plot([p["domains"] for p in own], [p["seconds"] for p in own], "o-", label=label)
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel="domains K", ylabel="seconds to a gap of 1e-8 nats")
    ax.legend()


STUDY = Study(
    name="robust",
    help="Train for the worst mixture of domains; solve finite games.",
    schema="red-lab.robust/1",
    parts=("finite", "arithmetic", "text"),
    once=("finite",),
    measure=measure_cell,
    summarise=summarise,
    draw=draw,
    options=(
        click.Option(
            ["--game"],
            metavar="FILE",
            help='Solve this: {"domains": [[…]], "experts": [[…]]}, rows that sum to 1; - for '
            "standard input.",
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print the game's solution as JSON."
        ),
    ),
    instead=solve,
)
robust = STUDY.command
