"""Render the table of the section, and check its targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["aims", "page"]

TIMES, GROWTH = 1.1, 1.1
"""Targets: time over the bare encoder's; peak memory at all rows over that at a tenth of them."""


def page(found: Mapping[str, Any]) -> str:
    """Return the section's part of the page."""
    runs = found["runs"]
    lines = [
        f"`redhost predict --in FILE --out FILE` as a process on {found['threads']} thread, "
        "compared with the bare encoder in transformers on the same texts: shortest first, in "
        "padded batches of 32, texts truncated to 128 tokens. Texts are pieces of eight words of "
        "real posts for MiniLM and sums for the tiny backbone. The command writes parts of "
        f"{found['part']:,} rows. Now and then it is paused and the bare encoder processes the "
        "part just written, so both times of a ratio belong to the same texts, in succession; "
        "ratios are medians, with quartiles. `whole` compares the time of the whole command with "
        "the bare encoder at that rate. It includes start-up, reading the file to the end before "
        "anything is computed, every restart after a kill, rows computed twice, and the output. "
        "With the largest files, every process but the last was killed (SIGKILL) at a random "
        "moment: while reading, while answering, or while writing the output.",
        "",
        "| backbone | file | rows | kills | lost | duplicated | peak memory, MiB | texts per "
        "second | × bare encoder | × sentence-transformers | whole |",
        "|---" * 11 + "|",
        *(_row(run, part=found["part"]) for run in runs),
        "",
        "| target | measured | |",
        "|---|---|---|",
    ]
    lines += [
        f"| {aim} | {seen} | {'met' if met else '**missed**'} |" for aim, seen, met in aims(found)
    ]
    return "\n".join(lines)


def aims(found: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return each target, the measured value, and whether the target is met."""
    runs = found["runs"]
    missing = sum(run["lost"] + run["doubled"] + run["other"] for run in runs)
    kills = sum(run["kills"] for run in runs)
    found_aims = [
        (f"no row lost, duplicated or changed by {kills} kills", f"{missing:,}", not missing),
    ]
    for run in _largest(runs):
        what = f"{run['backbone']}, {run['rows']:,} rows of {run['format']}"
        tenth = next(
            r["peak"] for r in runs if _kind(r) == _kind(run) and r["rows"] == run["rows"] // 10
        )
        growth = run["peak"] / tenth
        aim = f"{what}: peak memory at most {GROWTH:g} × that for a tenth of the rows"
        found_aims.append((aim, f"{growth:.2f} ×", growth <= GROWTH))
        for name, beside in run["bare"].items():
            ratio = beside["times"]["ratio"]
            aim = f"{what}: at most {TIMES:g} × {name}"
            found_aims.append((aim, f"{ratio:.2f} ×", ratio <= TIMES))
    return found_aims


def _largest(runs: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    most = max(run["rows"] for run in runs)
    return (run for run in runs if run["rows"] == most)


def _kind(run: Mapping[str, Any]) -> tuple[str, str]:
    return run["backbone"], run["format"]


def _row(run: Mapping[str, Any], *, part: int) -> str:
    bare = run["bare"]
    floor = next(iter(bare.values()), None)
    rate = "" if floor is None else f"{run['rows'] / run['seconds']:,.0f}"
    cells = (
        run["backbone"],
        f"`{run['format']}`",
        f"{run['rows']:,}",
        f"{run['kills']}",
        f"{run['lost']:,}",
        f"{run['doubled']:,}",
        f"{run['peak'] / 2**20:,.0f}",
        rate,
        "" if floor is None else _times(floor["times"]),
        _times(bare["sentence-transformers"]["times"]) if "sentence-transformers" in bare else "",
        "" if floor is None else f"{_whole(run, floor, part=part):.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _whole(run: Mapping[str, Any], floor: Mapping[str, Any], *, part: int) -> float:
    """Return the command's time over the bare encoder's for as many rows."""
    return float(run["seconds"] / (floor["part_seconds"]["median"] * run["rows"] / part))


def _times(x: Mapping[str, float]) -> str:
    return f"{x['ratio']:.2f} ({x['low']:.2f}–{x['high']:.2f})"
