"""Write the metrics of `make kills` as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["page"]

EVERY_STEP = "before, within and after every write, sync, rename and removal"

RECOMPOSES = """\
A process that runs `redhost recompose` on the five shipped experts is killed with signal 9. Then a
new host opens the home. The old or the new generation must be current, all its stored bytes must
match their digests, and it must answer. After the next write no partial files may be left. A kill
counts as *bad* if any of this fails."""

SERVERS = """\
`make kills OPTIONS=--server`: a server with an admin token receives a series of requests over HTTP
to swap between two generations with different answers, and is killed with signal 9. Then the old or
the new generation must be current. `Host.predict` and a newly started server, over HTTP, must give
answers that are bitwise identical to those before the kill. `gc` must remove every other
generation: no lease of the dead server may hold one, and no partial files or lease files may be
left. Every kill starts from a new home.

Starting Python and loading torch takes seconds, during which nothing is written. Most servers are
therefore forks of a process that has already done so; live host, uvicorn, routes and client are the
same, and the steps that take the first lease are among those at which they are killed. The last row
uses `redhost serve` as users start it, and so does the server that is started after each kill of
that row."""


FAULTS = """\
`make kills OPTIONS=--faults`: nothing is killed; other faults are injected.

- The disk is full, or the home cannot be written, at each step of a recompose in turn. The
  recompose must end with an error of redhost or continue without the file it could not write, and
  all conditions that apply after a kill must hold.
- With any single bit of `current` flipped, a host must refuse the home or load the same generation.
  With a bit of a cache flipped, a recompose must produce the same router and leave no expert out.
- A copy of an expert whose outputs are scaled by 2,048 or more must be refused, with or without
  `--accept`.
- If a broken copy of an expert is installed (1,100 nested folders, a pipe, a file without an end, a
  card with values of 1e37 or an empty text), a recompose must produce the same router from the
  other experts.
- A second backbone with the same id must be refused by name.
- Byte code that Python does not compare with its source must end the trust in a plugin."""


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.kills/1``."""
    lines = [
        "# Kills",
        "",
        "Written by `make kills` from `metrics.json`; do not edit.",
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
        lines += ["## Faults other than kills", ""]
        rows = {
            "the disk is full, at every write, sync, rename and removal": "full",
            "the home cannot be written, at each of these steps": "read_only",
            "a bit of `current` flipped, each bit in turn": "current",
            "a random bit of a cache flipped": "caches",
            "an expert with outputs scaled by thousands": "loud",
            "a broken package or an unusable card installed": "wrecks",
            "a second backbone with the same id installed": "namesake",
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
