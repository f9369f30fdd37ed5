"""Write the results of `make mutate` so far, as numbers and as a page."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import platform
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

__all__ = [
    "Words",
    "digest_of",
    "measure",
    "read_words",
    "score",
    "word_for",
    "write_page",
    "write_report",
]

Words = Mapping[tuple[str, str, str], str]
"""(file, function, line after) → why a mutant may survive; an empty line: the whole function."""

GOAL = 0.97
"""The share of mutants that tests should detect."""

NOTICED = ("killed", "timeout", "segfault")
GOT_AWAY = ("survived", "no tests", "suspicious")
SAMPLE = "sample.txt"
"""File in the folder of a room of which only a random sample of mutants is tested: their number."""

EQUIVALENT = "equivalent:"
"""How the reason of a mutant begins that computes what the code computes."""

UNMEASURED = ("not checked", "check was interrupted by user", "skipped")
STATUSES = ("killed", "timeout", "survived", "no tests", "suspicious", "not checked")


def read_words(path: Path) -> Words:
    """Read the hand-written reasons for surviving mutants; nothing if there is no file.

    Each ``[[survivor]]`` has ``file``, ``function``, ``word``, and ``after``, lines as shown on the
    page; without ``after`` it applies to the whole function.
    """
    survivors = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {
        (entry["file"], entry["function"], line): entry["word"]
        for entry in survivors.get("survivor", ())
        for line in entry.get("after", [""])
    }


def measure(
    rooms: Iterable[tuple[Path, Sequence[str]]],
    *,
    seed: int,
    words: Words | None = None,
    before: Mapping[str, Any] | None = None,
    now: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read mutmut's results of each room.

    Args:
        rooms: Each room's folder, and its mutated files, relative to the package's folder.
        seed: Random seed of the run.
        words: Reasons why some mutants may survive; the others get the kind of their change.
        before: Earlier results, kept for files that were not measured here.
        now: The current sha256 of every file.
    """
    files: dict[str, Any] = {}
    survivors: list[dict[str, str]] = []
    sampled: list[str] = []
    sources: dict[str, str] = {}
    old = before or {"files": {}, "survivors": [], "sampled": []}
    for folder, names in rooms:
        for name in names:
            found = _statuses(folder, name)
            if found is None:
                files[name] = old["files"].get(name)
                survivors += [
                    _reworded(s, words or {}) for s in old["survivors"] if s["file"] == name
                ]
                sampled += [name] if name in old["sampled"] else []
                sources |= {n: d for n, d in old.get("sources", {}).items() if n == name}
                continue
            files[name] = dict(Counter(found.values()))
            sampled += [name] if (folder / SAMPLE).is_file() else []
            sources[name] = digest_of([folder / "src"], name)
            got_away = ((m, s) for m, s in found.items() if s in GOT_AWAY)
            survivors += [_survivor(folder, name, m, s, words or {}) for m, s in got_away]
    return {
        "schema": "redhost.mutation/1",
        "mutmut": version("mutmut"),
        "python": platform.python_version(),
        "seed": seed,
        "goal": GOAL,
        "sampled": sampled,
        "files": files,
        "sources": sources,
        "changed": sorted(n for n, digest in sources.items() if digest != (now or sources)[n]),
        "survivors": survivors,
    }


def score(found: Mapping[str, int]) -> float | None:
    """Return the share of measured mutants that were detected; None if none were measured."""
    measured = sum(n for status, n in found.items() if status not in UNMEASURED)
    return sum(found.get(status, 0) for status in NOTICED) / measured if measured else None


def write_report(metrics: Mapping[str, Any], folder: Path) -> Path:
    """Write metrics.json and the page; return the path of the numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.json"
    path.write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n", "utf-8")
    write_page(metrics, folder / "README.md")
    return path


def write_page(metrics: Mapping[str, Any], path: Path) -> None:
    """Write metrics as a page."""
    lines = [*_head(metrics), *_table(metrics["files"]), *_survivors(metrics["survivors"])]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def word_for(before: str, after: str) -> str:
    """Return one word for the kind of change of a mutant."""
    old, new = Counter(_tokens(before)), Counter(_tokens(after))
    gone, come = old - new, new - old
    words = {
        "wording": any(t[-1] in "'\"" for t in gone),
        "None": "None" in come,
        "number": any(t[0].isdigit() for t in come),
        "boundary": bool({"<", "<=", ">", ">="} & come.keys()),
        "equality": bool({"==", "!=", "in", "is"} & come.keys()),
        "logic": bool({"and", "or", "not", "True", "False"} & (gone + come).keys()),
        "arithmetic": bool({"+", "-", "*", "/", "//", "%", "**", "@", "&", "|"} & come.keys()),
        "left out": not come or come.keys() <= {"(", ")", ","},
    }
    return next((word for word, fits in words.items() if fits), "other")


def _statuses(folder: Path, name: str) -> dict[str, str] | None:
    """Return mutant → status of a file; None if mutmut has not processed it."""
    found = sorted(_places(folder / "mutants/src", f"{name}.meta"))
    if not found:
        return None
    codes = json.loads(found[0].read_text("utf-8"))["exit_code_by_key"]
    return {mutant: status_by_exit_code[code] for mutant, code in codes.items()}


def _places(src: Path, name: str) -> Iterator[Path]:
    """Yield the places of a file, named relative to ``src`` or to a package's folder."""
    yield from (p for p in (src / name, *src.glob(f"*/{name}")) if p.exists())


def _survivor(folder: Path, name: str, mutant: str, status: str, words: Words) -> dict[str, str]:
    path = next(_places(folder / "src", name)).relative_to(folder)
    with contextlib.chdir(folder):
        diff = get_diff_for_mutant(mutant, path=path).splitlines()
    before = _changed(diff, "-")
    after = _changed(diff, "+")
    mangled = mutant.rpartition(".")[2].partition("__mutmut_")[0]  # x_name, or xǁClassǁname
    function = mangled[2:].replace("ǁ", ".")
    kind = "no test runs it" if status == "no tests" else word_for(before, after)
    found = {"file": name, "function": function, "before": before, "after": after, "word": kind}
    return _reworded(found, words)


def _reworded(survivor: Mapping[str, str], words: Words) -> dict[str, str]:
    """Return a survivor with its hand-written reason, if there is one."""
    name, function = survivor["file"], survivor["function"]
    keys = ((name, function, survivor["after"]), (name, function, ""))
    return {**survivor, "word": next((words[k] for k in keys if k in words), survivor["word"])}


def digest_of(folders: Iterable[Path], name: str) -> str:
    """Return the sha256 of a file's code; the name is relative to a folder or a package in it.

    Comments and docstrings are ignored: no mutant is made from them.
    """
    path = next(place for folder in folders for place in _places(folder, name))
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [x for x in body if not _is_text(x)]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changed(diff: Sequence[str], sign: str) -> str:
    lines = (x[1:].strip() for x in diff if x.startswith(sign) and not x.startswith(sign * 3))
    return " ".join(lines)


def _tokens(code: str) -> list[str]:
    return re.findall(r"\"[^\"]*\"|'[^']*'|\w+|[<>=!]=|\*\*|//|[^\s\w]", code)


def _head(metrics: Mapping[str, Any]) -> Iterator[str]:
    files = metrics["files"]
    found = sum((Counter(f) for f in files.values() if f), Counter[str]())
    share = score(found)
    yield "# Mutation testing"
    yield ""
    yield "Written by `make mutate` from `metrics.json`; do not edit."
    yield ""
    yield (
        "Do the tests detect errors in the code? Each mutant is the code with one small change: a "
        "number off by one, a comparison reversed, an argument removed. A mutant is detected if it "
        "makes a test fail or run far too long; otherwise it survives. Only bodies of functions "
        "are mutated, and not those under decorators other than `classmethod` and `staticmethod`; "
        "properties and module-level values are therefore not covered. mutmut "
        f"{metrics['mutmut']}, Python {metrics['python']}, random seed {metrics['seed']}."
    )
    yield ""
    left = _left(files.values())
    if share is not None:
        yield (
            f"**{share:.1%} of {found.total() - left:,} measured mutants are detected** (goal "
            f"{metrics['goal']:.0%})."
        )
        alike = sum(s["word"].startswith(EQUIVALENT) for s in metrics["survivors"])
        noticed = sum(found[status] for status in NOTICED)
        yield ""
        yield (
            f"Of the survivors {alike:,} are equivalent: they compute the same, and no test could "
            "detect them; the last column says why. The mutation score leaves equivalent mutants "
            f"out: **{noticed / (found.total() - left - alike):.1%}**."
        )
    sampled = {name: found for name, found in files.items() if name in metrics["sampled"]}
    if rest := _left(sampled.values()):
        total = sum(sum(found.values()) for found in sampled.values() if found)
        yield ""
        yield (
            f"Of the following files, a random sample of {total - rest:,} of {total:,} mutants was "
            f"tested: {_quoted(sampled)}."
        )
    if slow := left - rest:
        yield ""
        yield f"Begun, but not tested yet: {slow:,} mutants, the slower ones; fast ones come first."
    if changed := metrics.get("changed"):
        yield ""
        yield f"Changed since they were measured: {_quoted(changed)}."
    unmeasured = [n for n, f in files.items() if f is None or (f and score(f) is None)]
    if unmeasured:
        yield ""
        yield f"Not measured yet: {_quoted(unmeasured)}."
    yield ""


def _left(found: Iterable[Mapping[str, int] | None]) -> int:
    """Return the number of mutants that were not tested."""
    return sum(f.get(status, 0) for f in found if f for status in UNMEASURED)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(files: Mapping[str, Mapping[str, int] | None]) -> Iterator[str]:
    yield f"| file | detected | {' | '.join(STATUSES)} |"
    yield "|---" * (len(STATUSES) + 2) + "|"
    for name, found in files.items():
        if found and (share := score(found)) is not None:
            cells = " | ".join(f"{found.get(status, 0):,}" for status in STATUSES)
            yield f"| {name} | {share:.1%} | {cells} |"
    yield ""


def _survivors(survivors: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield "## Surviving mutants"
    yield ""
    if not survivors:
        yield "No measured mutant survives."
        return
    yield "| file | function | before | after | kind of change, or reason |"
    yield "|---|---|---|---|---|"
    for s in survivors:
        before, after = _cell(s["before"]), _cell(s["after"])
        yield f"| {s['file']} | {s['function']} | {before} | {after} | {s['word']} |"


def _cell(code: str) -> str:
    """Return code as a cell: shortened, with cell separators escaped."""
    shown = code if len(code) <= 90 else code[:89] + "…"  # noqa: PLR2004
    return f"`{shown.replace('`', '´')}`".replace("|", "\\|") if shown else "nothing"
