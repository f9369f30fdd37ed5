"""Write the metrics of `redhost lab kills` as a page that people read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["page"]

EVERY_STEP = "before, within and after every write, sync, rename and removal"

RECOMPOSES = """\
A process that runs `redhost recompose` on the five shipped experts is killed with signal
9. Then a new host opens the home: the old or the new generation must be current, every
stored byte of it must be sound, it must answer, and after the next writer nothing
partial may be left."""

SERVERS = """\
`redhost lab kills --server`: a server with an admin token is asked over HTTP for one swap after
the other, between two generations that answer differently, and killed with signal 9. Then the old
or the new generation must be current, `Host.predict` must answer bit for bit as it did before, a
freshly started server the same over HTTP, and `gc` must remove every other generation: no lease
of the dead server may hold one, nothing partial and no lease file may be left. Every kill begins
with a home of its own.

Starting Python and loading torch takes seconds, and no byte is written meanwhile. So most servers
are forks of a process that has done so: live host, uvicorn, routes and client are the same, and
the steps of taking the first lease are among those at which they die. The last row is
`redhost serve` as users start it, and so is the fresh server that is asked afterwards."""


FAULTS = """\
`redhost lab kills --faults`: nothing is killed. The disk is full, or the home cannot be written, at
one step of a recompose after the other: it ends in an error of redhost or goes on without what it
could not write, and all that is asked after a kill must hold. With any bit of `current` flipped a
host must refuse the home or find the same generation; with a bit of a cache flipped a recompose
must make the same router and leave nobody out. A copy of an expert that says the same, 2,048 times
as loud or more, must be refused, `--accept` or not. With a copy of an expert installed that is
1,100 folders deep, a pipe, without an end, or has a card of 1e37 or an empty text, a recompose must
make the same router out of the others; a second backbone of the same id must be refused by name;
byte code that Python does not compare with its source must end the trust in a plugin."""


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.kills/1``."""
    lines = [
        "# Kills",
        "",
        "Written by `redhost lab kills` from `metrics.json`; do not edit.",
        "",
    ]
    if "steps" in metrics:
        rows = {EVERY_STEP: "steps", "at random within {longest:.2f} s": "random"}
        lines += _section(RECOMPOSES, metrics, rows, then="after the new generation was current")
    if (server := metrics.get("server")) is not None:
        lines += ["## Servers in the middle of a swap", ""]
        rows = {
            EVERY_STEP: "steps",
            "at random within {longest:.2f} s of its start": "random",
            "`redhost serve`, at random within {longest:.2f} s of its first swap": "processes",
        }
        lines += _section(SERVERS, server, rows, then="the generation swapped to was current")
    if (faults := metrics.get("faults")) is not None:
        lines += ["## Faults that are no kills", ""]
        rows = {
            "the disk is full, at every write, sync, rename and removal": "full",
            "the home cannot be written, at each of them": "read_only",
            "a bit of `current` flipped, every one": "current",
            "a bit of a cache flipped, at random": "caches",
            "an expert thousands of times as loud": "loud",
            "a broken package or a hopeless card installed": "wrecks",
            "a second backbone of the same id installed": "namesake",
            "byte code in a trusted plugin": "byte_code",
        }
        then, head = "after the new generation was current", ("fault", "faults")
        lines += _section(FAULTS, faults, rows, then=then, head=head)
    return "\n".join(lines)


def _section(
    words: str,
    metrics: Mapping[str, Any],
    rows: Mapping[str, str],
    *,
    then: str,
    head: tuple[str, str] = ("killed", "kills"),
) -> list[str]:
    table = [f"| {head[0]} | {head[1]} | {then} | bad |", "|---|---|---|---|"]
    for title, name in rows.items():
        found = metrics[name]
        table.append(
            f"| {title.format_map(found)} | {found['kills']:,} "
            f"| {found['new_generation_current']:,} | {len(found['bad'])} |"
        )
    summary = f"**{metrics['kills']:,} {head[1]}, {metrics['bad']} bad.**"
    return [words, "", summary, "", *table, ""]
