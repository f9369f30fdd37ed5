"""Render the tables of the section, and check its targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from red_lab.bench.answers.author import AUTHOR_ROWS
from red_lab.bench.answers.systems import FLOOR, SYSTEMS

__all__ = ["aims", "page"]

ONE, MANY, LARGE = 1.15, 1.1, 0.95
"""Targets: time relative to a padded pass, for 1 and 64 lines; rate over sentence-transformers'."""

HTTP, MANY_CLIENTS, TAIL = 1.15, 4.0, 3.0
"""Targets: time over a call in process; rate of 32 clients over that of one; their p99 over p50."""

HELD = 1.3
"""Target: the server's memory over that of encoder and experts."""

AUTHOR, ENCODER = 60.0, 0.8
"""Targets: seconds from texts to a package, and the encoder's share of them."""


def page(found: Mapping[str, Any]) -> str:
    """Return the section's part of the page."""
    peers = ", ".join(f"{name} {version}" for name, version in found["peers"].items())
    lines = [
        "Time from text to answer, tokenisation included. All systems answer the same texts, in "
        f"turn, in one process, on {found['threads']} thread{_on(found)}; texts are truncated to "
        f"{found['max_tokens']} tokens. Versions: {peers}. Lines come from transcripts of a "
        "television series, posts from the training file of 20 Newsgroups. transformers, "
        "sentence-transformers and onnxruntime return vectors and no answer; redhost has five "
        "experts, twenty labels and its default router. The largest number of lines is answered in "
        "five calls. Ratios are medians over rounds, with quartiles. Few texts are compared with "
        f"`{FLOOR}`, many with sentence-transformers, since a single padded pass in the given "
        "order would be mostly padding.",
    ]
    for name, measured in found["backbones"].items():
        lines += ["", f"**{name}**", "", *_waiting(measured), "", *_rates(measured)]
        if "engines" in measured:  # older files have none
            lines += ["", *_engines(measured["engines"])]
        lines += ["", *_http(measured["http"])]
        if "resting" in measured:
            lines += ["", _resting(measured)]
        if "author" in measured:
            lines += ["", _author(measured["author"])]
        if "cold" in measured:
            lines += ["", *_cold(measured["cold"])]
    lines += ["", "| target | measured | |", "|---|---|---|"]
    lines += [
        f"| {aim} | {seen} | {'met' if met else '**missed**'} |" for aim, seen, met in aims(found)
    ]
    return "\n".join(lines)


def _on(found: Mapping[str, Any]) -> str:
    return f" of {found['processor']}" if "processor" in found else ""


def aims(found: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return each target, the measured value, and whether the target is met."""
    found_aims = []
    for name, measured in found["backbones"].items():
        waiting, large = _split(measured["cases"])
        for case, most in (("1 line", ONE), ("64 lines", MANY)):
            ratio = waiting[case]["redhost"]["times"]["ratio"]
            aim = f"{name}, {case}: at most {most:g} × a padded pass"
            found_aims.append((aim, f"{ratio:.2f} ×", ratio <= most))
        for case, sides in large.items():
            rate = 1 / sides["redhost"]["times"]["ratio"]
            aim = f"{name}, {case}: at least {LARGE:g} × sentence-transformers' rate"
            found_aims.append((aim, f"{rate:.2f} ×", rate >= LARGE))
        found_aims += _http_aims(name, measured["http"])
        found_aims += _author_aims(name, measured.get("author"))
        if "resting" in measured:
            ratio = measured["http"]["memory"]["busy"] / measured["resting"]["bytes"]
            aim = f"{name}, the server's memory: at most {HELD:g} × encoder and experts"
            found_aims.append((aim, f"{ratio:.2f} ×", ratio <= HELD))
    return found_aims


def _author_aims(name: str, found: Mapping[str, Any] | None) -> Iterator[tuple[str, str, bool]]:
    if found is None or found["texts"] != AUTHOR_ROWS:  # a trial, or fewer for a slow encoder
        return
    took, share = found["first"], found["encoder"] / found["first"]
    aim = f"{name}, training an expert on {AUTHOR_ROWS:,} posts: at most {AUTHOR:g} s"
    yield aim, f"{took:.0f} s", took <= AUTHOR
    yield (
        f"{name}, the encoder's share of that time: at least {ENCODER:.0%}",
        f"{share:.0%}",
        share >= ENCODER,
    )


def _http_aims(name: str, http: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    ratio, busiest = http["times"]["ratio"], http["clients"]["32"]
    rate, tail = busiest["times"]["ratio"], busiest["p99"] / busiest["p50"]
    yield f"{name}, HTTP: at most {HTTP:g} × in process", f"{ratio:.2f} ×", ratio <= HTTP
    aim = f"{name}, 32 clients: at least {MANY_CLIENTS:g} × the throughput of one"
    yield aim, f"{rate:.2f} ×", rate >= MANY_CLIENTS
    yield f"{name}, 32 clients: p99 at most {TAIL:g} × p50", f"{tail:.2f} ×", tail <= TAIL


def _split(cases: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the cases of latency, which include a padded pass, and the large one."""
    waiting = {name: sides for name, sides in cases.items() if FLOOR in sides}
    return waiting, {name: sides for name, sides in cases.items() if name not in waiting}


def _waiting(measured: Mapping[str, Any]) -> Iterator[str]:
    waiting, _ = _split(measured["cases"])
    order = sorted(waiting, key=_size)
    measured_sides = [side for side in SYSTEMS if all(side in sides for sides in waiting.values())]
    yield f"| latency in ms, p50 (p99) | {' | '.join(order)} | peak memory, MiB |"
    yield "|---" * (len(order) + 2) + "|"
    for side in measured_sides:
        cells = [_waited(waiting[case][side]) for case in order]
        yield f"| {side} | {' | '.join(cells)} | {measured['memory'][side] / 2**20:,.0f} |"
    yield ""
    yield f"| time relative to {FLOOR} | {' | '.join(order)} |"
    yield "|---" * (len(order) + 1) + "|"
    for side in measured_sides:
        if side != FLOOR:
            cells = [_times(waiting[case][side]["times"]) for case in order]
            yield f"| {side} | {' | '.join(cells)} |"


def _rates(measured: Mapping[str, Any]) -> Iterator[str]:
    _, large = _split(measured["cases"])
    for case, sides in large.items():
        yield f"| {case} | texts per second | time relative to sentence-transformers |"
        yield "|---|---|---|"
        for side, x in sides.items():
            yield f"| {side} | {x['rate']:,.0f} | {_times(x['times'])} |"


def _engines(engines: Mapping[str, Any]) -> Iterator[str]:
    posts = engines["torch"]["posts"]
    yield f"| engine, {posts:,} posts | largest difference of h to torch | same labels | accuracy |"
    yield "|---|---|---|---|"
    for engine, x in engines.items():
        yield f"| {engine} | {x['away']:.2g} | {x['agree']:.3f} | {x['accuracy']:.3f} |"


def _http(http: Mapping[str, Any]) -> Iterator[str]:
    medians = {name: 1000 * x["median"] for name, x in http["query"].items()}
    yield (
        f"One line takes {medians['http']:.1f} ms over HTTP and {medians['in process']:.1f} ms in "
        f"process, measured in turn: {_times(http['times'])} ×. The server uses "
        f"{http['memory']['idle'] / 2**20:,.0f} MiB before the clients connect and "
        f"{http['memory']['busy'] / 2**20:,.0f} afterwards."
    )
    if bound := http.get("bound"):
        yield ""
        yield (
            f"In process, 32 lines in one call are answered at {bound['rate']['median']:,.0f} per "
            f"second, {_times(bound['times'])} × the rate of single lines. On one thread this is "
            "the most that concurrent clients can gain."
        )
    yield ""
    yield "| clients | answers per second | × one client | p50, ms | p99, ms |"
    yield "|---|---|---|---|---|"
    for count, x in sorted(http["clients"].items(), key=lambda pair: int(pair[0])):
        yield (
            f"| {count} | {x['rate']['median']:,.1f} | {_times(x['times'])} "
            f"| {1000 * x['p50']:.1f} | {1000 * x['p99']:.1f} |"
        )


def _author(x: Mapping[str, Any]) -> str:
    return (
        f"Training and packaging an expert on {x['texts']:,} posts takes {x['first']:.1f} s; the "
        f"encoder alone accounts for {x['encoder']:.1f} s of it ({x['encoder'] / x['first']:.0%}). "
        f"A second expert on the same posts needs no encoding and takes {x['second']:.1f} s."
    )


def _cold(cold: Mapping[str, Any]) -> Iterator[str]:
    yield "| one process for one line | seconds | relative to transformers (vectors only) |"
    yield "|---|---|---|"
    for name, x in cold.items():
        shown = f"`{name}`" if name.startswith("redhost") else name
        yield f"| {shown} | {x['seconds']['median']:.2f} | {_times(x['times'])} |"


def _resting(measured: Mapping[str, Any]) -> str:
    least, held = measured["resting"], measured["http"]["memory"]["busy"]
    return (
        "A process with the encoder in transformers, the tensors of the "
        f"{least['experts']} experts and nothing else uses {least['bytes'] / 2**20:,.0f} MiB after "
        f"32 lines. The server uses {held / least['bytes']:.2f} times as much after its clients."
    )


def _size(case: str) -> tuple[int, str]:
    return int(case.split(maxsplit=1)[0].replace(",", "")), case


def _waited(x: Mapping[str, Any]) -> str:
    return f"{1000 * x['seconds']['median']:,.1f} ({1000 * x['p99']:,.1f})"


def _times(x: Mapping[str, float]) -> str:
    return f"{x['ratio']:.2f} ({x['low']:.2f}–{x['high']:.2f})"
