"""The section's tables, and what they say of the aims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from red_lab.bench.answers.author import AUTHOR_ROWS
from red_lab.bench.answers.systems import FLOOR, SYSTEMS

__all__ = ["aims", "page"]

ONE, MANY, LARGE = 1.15, 1.1, 0.95
"""Aims: times a padded pass for one line and for 64, and of sentence-transformers' rate."""

HTTP, MANY_CLIENTS, TAIL = 1.15, 4.0, 3.0
"""Aims: times a call in process; rate of 32 clients over that of one; their p99 over p50."""

HELD = 1.3
"""Aim: times the memory of encoder and experts."""

AUTHOR, ENCODER = 60.0, 0.8
"""Aims: seconds from texts to a package, and the encoder's part of them."""


def page(found: Mapping[str, Any]) -> str:
    """Return the section's part of the page."""
    peers = ", ".join(f"{name} {version}" for name, version in found["peers"].items())
    lines = [
        "From text to answer, tokens included, the same texts in turns in one process, "
        f"{found['threads']} thread{_on(found)}, texts cut at {found['max_tokens']} tokens, "
        f"{peers}. Lines are of a television series' transcripts, posts of 20 Newsgroups' training "
        "file. transformers, sentence-transformers and onnxruntime give vectors and no answer; "
        "redhost has five experts, twenty labels and its default router. Many lines go in five "
        "calls. Ratios are medians of the rounds' own, with quartiles: for a few texts beside "
        f"`{FLOOR}`, for many beside sentence-transformers, since one padded pass in the order "
        "given would be mostly filling.",
    ]
    for name, measured in found["backbones"].items():
        lines += ["", f"**{name}**", "", *_waiting(measured), "", *_rates(measured)]
        if "engines" in measured:  # not in a file from before there were any
            lines += ["", *_engines(measured["engines"])]
        lines += ["", *_http(measured["http"])]
        if "resting" in measured:
            lines += ["", _resting(measured)]
        if "author" in measured:
            lines += ["", _author(measured["author"])]
        if "cold" in measured:
            lines += ["", *_cold(measured["cold"])]
    lines += ["", "| aim | found | |", "|---|---|---|"]
    lines += [
        f"| {aim} | {seen} | {'met' if met else '**missed**'} |" for aim, seen, met in aims(found)
    ]
    return "\n".join(lines)


def _on(found: Mapping[str, Any]) -> str:
    return f" of {found['processor']}" if "processor" in found else ""


def aims(found: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return each aim, what was found, and whether it is met."""
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
    if found is None or found["texts"] != AUTHOR_ROWS:  # a trial, or a slower encoder's fewer
        return
    took, share = found["first"], found["encoder"] / found["first"]
    aim = f"{name}, an expert of {AUTHOR_ROWS:,} posts: at most {AUTHOR:g} s"
    yield aim, f"{took:.0f} s", took <= AUTHOR
    yield (
        f"{name}, the encoder's part of it: at least {ENCODER:.0%}",
        f"{share:.0%}",
        share >= ENCODER,
    )


def _http_aims(name: str, http: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    ratio, busiest = http["times"]["ratio"], http["clients"]["32"]
    rate, tail = busiest["times"]["ratio"], busiest["p99"] / busiest["p50"]
    yield f"{name}, HTTP: at most {HTTP:g} × in process", f"{ratio:.2f} ×", ratio <= HTTP
    aim = f"{name}, 32 clients: at least {MANY_CLIENTS:g} × the answers of one"
    yield aim, f"{rate:.2f} ×", rate >= MANY_CLIENTS
    yield f"{name}, 32 clients: p99 at most {TAIL:g} × p50", f"{tail:.2f} ×", tail <= TAIL


def _split(cases: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the cases of waiting, which have a padded pass beside them, and the large one."""
    waiting = {name: sides for name, sides in cases.items() if FLOOR in sides}
    return waiting, {name: sides for name, sides in cases.items() if name not in waiting}


def _waiting(measured: Mapping[str, Any]) -> Iterator[str]:
    waiting, _ = _split(measured["cases"])
    order = sorted(waiting, key=_size)
    measured_sides = [side for side in SYSTEMS if all(side in sides for sides in waiting.values())]
    yield f"| milliseconds, p50 (p99) | {' | '.join(order)} | peak, MiB |"
    yield "|---" * (len(order) + 2) + "|"
    for side in measured_sides:
        cells = [_waited(waiting[case][side]) for case in order]
        yield f"| {side} | {' | '.join(cells)} | {measured['memory'][side] / 2**20:,.0f} |"
    yield ""
    yield f"| × {FLOOR} | {' | '.join(order)} |"
    yield "|---" * (len(order) + 1) + "|"
    for side in measured_sides:
        if side != FLOOR:
            cells = [_times(waiting[case][side]["times"]) for case in order]
            yield f"| {side} | {' | '.join(cells)} |"


def _rates(measured: Mapping[str, Any]) -> Iterator[str]:
    _, large = _split(measured["cases"])
    for case, sides in large.items():
        yield f"| {case} | texts a second | seconds × sentence-transformers |"
        yield "|---|---|---|"
        for side, x in sides.items():
            yield f"| {side} | {x['rate']:,.0f} | {_times(x['times'])} |"


def _engines(engines: Mapping[str, Any]) -> Iterator[str]:
    posts = engines["torch"]["posts"]
    yield f"| engine, {posts:,} posts | h away from torch's, at most | same labels | accuracy |"
    yield "|---|---|---|---|"
    for engine, x in engines.items():
        yield f"| {engine} | {x['away']:.2g} | {x['agree']:.3f} | {x['accuracy']:.3f} |"


def _http(http: Mapping[str, Any]) -> Iterator[str]:
    medians = {name: 1000 * x["median"] for name, x in http["query"].items()}
    yield (
        f"One line over HTTP: {medians['http']:.1f} ms beside {medians['in process']:.1f} in "
        f"process, by turns, {_times(http['times'])} ×. The server holds "
        f"{http['memory']['idle'] / 2**20:,.0f} MiB before the clients and "
        f"{http['memory']['busy'] / 2**20:,.0f} after them."
    )
    if bound := http.get("bound"):
        yield ""
        yield (
            f"In process 32 lines in one call are {bound['rate']['median']:,.0f} a second, "
            f"{_times(bound['times'])} × those asked one by one: on one thread that is the most "
            "that clients at once can gain."
        )
    yield ""
    yield "| clients | answers a second | × one client | p50, ms | p99, ms |"
    yield "|---|---|---|---|---|"
    for count, x in sorted(http["clients"].items(), key=lambda pair: int(pair[0])):
        yield (
            f"| {count} | {x['rate']['median']:,.1f} | {_times(x['times'])} "
            f"| {1000 * x['p50']:.1f} | {1000 * x['p99']:.1f} |"
        )


def _author(x: Mapping[str, Any]) -> str:
    return (
        f"An author's expert of {x['texts']:,} posts: {x['first']:.1f} s from texts to package, of "
        f"which the encoder alone takes {x['encoder']:.1f} ({x['encoder'] / x['first']:.0%}); a "
        f"second expert on the same posts, which encodes nothing, {x['second']:.1f} s."
    )


def _cold(cold: Mapping[str, Any]) -> Iterator[str]:
    yield "| a process for one line | seconds | × transformers, which gives vectors alone |"
    yield "|---|---|---|"
    for name, x in cold.items():
        shown = f"`{name}`" if name.startswith("redhost") else name
        yield f"| {shown} | {x['seconds']['median']:.2f} | {_times(x['times'])} |"


def _resting(measured: Mapping[str, Any]) -> str:
    least, held = measured["resting"], measured["http"]["memory"]["busy"]
    return (
        "A process with the encoder by transformers, the tensors of the "
        f"{least['experts']} experts and nothing else holds {least['bytes'] / 2**20:,.0f} MiB "
        "after 32 lines; the server, "
        f"after its clients, {held / least['bytes']:.2f} times as much."
    )


def _size(case: str) -> tuple[int, str]:
    return int(case.split(maxsplit=1)[0].replace(",", "")), case


def _waited(x: Mapping[str, Any]) -> str:
    return f"{1000 * x['seconds']['median']:,.1f} ({1000 * x['p99']:,.1f})"


def _times(x: Mapping[str, float]) -> str:
    return f"{x['ratio']:.2f} ({x['low']:.2f}–{x['high']:.2f})"
