"""Measure the code base: how much there is to read, and how many functions one request enters.

Run it as ``.venv/bin/python tools/house.py``, with ``--help`` for more. The exit code is always 0,
and figures that cannot be measured on this tree are shown as ``-``. The rules (those for running
code are in ``house_calls.py``):

- **Statements**: nodes of type ``ast.stmt``, less imports and less bare constants (docstrings of
  modules, classes, functions and attributes, and ``...``). Headers of ``class``, ``def``, ``if``
  and the like count one each, ``__all__`` too. Lines are physical ones.
- **Circles**: strongly connected modules of ``core`` and ``registry``, by the names in imports; a
  module does not count as importing its package. ``loading``: imports of modules' bodies;
  ``running``: those of functions too; ``typing``: those under ``TYPE_CHECKING`` as well.
- **Banned words**: see ``banned_words.txt``. Identifiers are Python's names, split at underscores
  and capitals; prose is comments, strings and Markdown. Each identifier counts once.
- **Functions given a Host**, in core and commands, outside class ``Host``: a parameter whose
  annotation names ``Host``, or one named ``host`` without annotation.
- **Long**: functions of more than 40 lines from ``def`` to the last, files of more than 600; in
  core, registry, commands, cli.py and src.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import keyword
import re
import subprocess
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from house_calls import ROOT, WALKS, follow_all, python

__all__ = ["Banned", "circles", "count_words", "main", "read_banned", "split_name", "statements"]

READERS = ("read_expert", "load_expert", "read_expert_package", "read_package", "parse_expert")
"""Possible names of the function that reads an expert from bytes; the first one entered counts."""

PLACES = ("core", "registry", "commands", "cli.py", "src", "plugins", "docs")
ROOMS = (
    "core + registry", "core", "registry", "core/robust + core/mechanisms", "core/robust",
    "core/mechanisms",
)  # fmt: skip
LONG_FUNCTION, LONG_FILE = 40, 600
LEVELS = ("loading", "running", "typing")
DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def sources(place: str, suffix: str = ".py") -> list[Path]:
    """Return the files of a folder (for plugins, those under ``src``) or one file; no links."""
    top = ROOT / place
    found = (
        [top]
        if top.is_file()
        else top.glob(f"*/src/**/*{suffix}" if place == "plugins" else f"**/*{suffix}")
    )
    return sorted(p for p in found if p.suffix == suffix and not p.is_symlink())


def statements(source: str) -> int:
    """Count statements by the rule above."""
    return sum(
        isinstance(n, ast.stmt)
        and not isinstance(n, (ast.Import, ast.ImportFrom))
        and not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        for n in ast.walk(ast.parse(source))
    )


def split_name(name: str) -> list[str]:
    """Split a name at underscores and capitals, into lower-case words."""
    return [w.lower() for w in WORD.findall(name)]


def _one(_: str) -> int:
    return 1


def _lines(source: str) -> int:
    return len(source.splitlines())


MEASURES: dict[str, Callable[[str], int]] = {
    "statements": statements,
    "files": _one,
    "lines": _lines,
}


class Banned(NamedTuple):
    """Banned words: in names and prose, in parts of names, as whole names; exceptions."""

    everywhere: frozenset[str]
    names: frozenset[str]
    exact: frozenset[str]
    allowed: frozenset[str] = frozenset()


def read_banned(text: str) -> Banned:
    """Read lines of ``KIND: word word``; ``#`` starts a comment."""
    words: dict[str, set[str]] = {kind: set() for kind in Banned._fields}
    for line in text.splitlines():
        kind, colon, rest = line.partition("#")[0].partition(":")
        if colon:
            words[kind.strip()].update(rest.split())
    return Banned(**{kind: frozenset(listed) for kind, listed in words.items()})


def count_words(
    source: str, banned: Banned, *, python: bool = True
) -> tuple[Counter[str], Counter[str]]:
    """Count (identifiers that have a banned word, by identifier; banned words of prose)."""
    names: Counter[str] = Counter()
    prose = [] if python else [source]
    banned_parts = banned.everywhere | banned.names
    if python:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type != tokenize.NAME:
                if tokenize.tok_name[token.type] in {"COMMENT", "STRING", "FSTRING_MIDDLE"}:
                    prose.append(token.string)
            elif not keyword.iskeyword(token.string):
                parts = banned_parts.intersection(split_name(token.string))
                strange = bool(parts) or token.string in banned.exact
                names[token.string] += strange and token.string not in banned.allowed
    strange_words = banned.everywhere - banned.allowed
    words = Counter(w for text in prose for w in split_name(text) if w in strange_words)
    return +names, words


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, largest first (Tarjan)."""
    low: dict[str, int] = {}
    index: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        low[node] = index[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted((c for c in found if len(c) > 1), key=lambda c: (-len(c), c))


def _imports(node: ast.AST, level: str) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a level and of the levels before it."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        children = node.orelse if level != "typing" else children
    elif isinstance(node, DEFS) and level == "loading":
        children = ()
    for child in children:
        yield from _imports(child, level)


def import_graph(level: str) -> dict[str, set[str]]:
    """Return the imports between modules of core and registry."""
    files: dict[str, Path] = {}
    for path in (p for place in ("core", "registry") for p in sources(place)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(("redhost", *(p for p in parts if p != "__init__")))] = path
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in _imports(ast.parse(path.read_text("utf-8")), level):
            if isinstance(node, ast.Import):
                graph[name].update(a.name for a in node.names)
                continue
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            named = {f"{base}.{a.name}" for a in node.names}
            graph[name] |= (named & files.keys()) | ({base} if named - files.keys() else set())
        graph[name] = (graph[name] & files.keys()) - {name}
    return graph


def given_host(tree: ast.AST) -> list[str]:
    """Return the functions outside class Host that are given a Host."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, DEFS):
            a = node.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            types = [ast.unparse(g.annotation) if g.annotation else g.arg.title() for g in given]
            if re.search(r"\bHost\b", " ".join(types)):
                found.append(node.name)
        if not (isinstance(node, ast.ClassDef) and node.name == "Host"):
            found += given_host(node)
    return found


START = """
import json, sys, time
t = time.perf_counter()
import redhost.core.host
t = time.perf_counter() - t
loaded = sum(m.split(".")[0] == "redhost" for m in sys.modules)
names = getattr(redhost, "__all__", None) or [n for n in dir(redhost) if n[0] != "_"]
print(json.dumps([loaded, round(t * 1000), len(set(names))]))
"""


def text_figures() -> tuple[dict[str, int], dict[str, Any]]:
    """Measure the source text."""
    figures: dict[str, int] = {}
    details: dict[str, Any] = {"long functions": [], "long files": [], "functions given a Host": []}
    texts = {p: p.read_text("utf-8") for place in PLACES[:5] for p in sources(place)}
    for what, measure in MEASURES.items():
        for room in ROOMS if what == "statements" else ROOMS[:3]:
            paths = [p for place in room.split(" + ") for p in sources(place)]
            figures[f"{what}: {room}"] = sum(measure(texts[p]) for p in paths)
    for path, text in texts.items():
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(text)
        if _lines(text) > LONG_FILE:
            details["long files"].append([name, _lines(text)])
        for node in ast.walk(tree):
            if isinstance(node, DEFS):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION:
                    details["long functions"].append([f"{name}:{node.name}", length])
        if name.startswith(("core/", "commands/")):
            details["functions given a Host"] += [f"{name}:{f}" for f in given_host(tree)]
    details |= {f"circles, {level}": circles(import_graph(level)) for level in LEVELS}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    contracts = settings.get("importlinter", {}).get("contracts", ())
    details["ignored imports"] = [i for c in contracts for i in c.get("ignore_imports", ())]
    figures |= {what: len(found) for what, found in details.items()}
    banned = read_banned((ROOT / "tools" / "banned_words.txt").read_text("utf-8"))
    all_names: Counter[str] = Counter()
    all_prose: Counter[str] = Counter()
    for place in PLACES:
        python = place != "docs"
        counted = [
            count_words(p.read_text("utf-8"), banned, python=python)
            for p in sources(place, ".py" if python else ".md")
        ]
        figures[f"banned identifiers: {place}"] = sum(n.total() for n, _ in counted)
        figures[f"banned words of prose: {place}"] = sum(w.total() for _, w in counted)
        all_names.update(sum((n for n, _ in counted), Counter()))
        all_prose.update(sum((w for _, w in counted), Counter()))
    figures["banned identifiers, all"] = all_names.total()
    figures["banned identifiers, distinct"] = len(all_names)
    figures["banned words of prose, all"] = all_prose.total()
    details["banned identifiers"] = dict(all_names.most_common())
    details["banned words of prose"] = dict(all_prose.most_common())
    return figures, details


def run_figures(walks: Mapping[str, Mapping[str, Any]]) -> dict[str, int | None]:
    """Measure running code."""
    figures: dict[str, int | None] = dict.fromkeys(
        ("modules at start", "ms at start", "public names")
    )
    with contextlib.suppress(subprocess.CalledProcessError):
        tries = [json.loads(python("-c", START)) for _ in range(3)]
        figures = dict(zip(figures, map(min, zip(*tries, strict=True)), strict=True))
    for walk in WALKS:
        functions, cross = (walks.get(walk, {}).get(k, ()) for k in ("functions", "cross"))
        figures[f"{walk}: functions entered"] = len(functions) or None
        figures[f"{walk}: files"] = len({f[0] for f in functions}) or None
        figures[f"{walk}: cross-file calls"] = sum(c[2] for c in cross) or None
        if walk.endswith("check"):
            called: Counter[str] = Counter()
            for _, name, _, n in functions:
                called[name.rpartition(".")[2]] += n
            reader = next((r for r in READERS if r in called), None)
            figures[f"{walk}: experts read from bytes"] = called[reader] if reader else None
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, or the functions that one request enters."""
    parser = argparse.ArgumentParser(description="Measure the house.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    parser.add_argument("--before", type=Path, metavar="FILE", help="such a file, to stand beside")
    parser.add_argument("--functions", choices=WALKS, help="list the functions that this enters")
    parser.add_argument("--cross", choices=WALKS, help="list the calls between files in this")
    given = parser.parse_args(arguments)
    if given.functions or given.cross:
        walks = follow_all([w for w in WALKS if w in {given.functions, given.cross}])
        for file, name, _, n in walks.get(given.functions, {}).get("functions", ()):
            print(f"{n:>6}  {file}:{name}")
        for caller, callee, n in walks.get(given.cross, {}).get("cross", ()):
            print(f"{n:>6}  {caller} -> {callee}")
    else:
        written, details = text_figures()
        walks = follow_all(WALKS)
        figures = {**written, **run_figures(walks)}
        before = json.loads(given.before.read_text("utf-8"))["figures"] if given.before else {}
        for what, n in figures.items():
            then = f"{before.get(what) or 0:>9,} ->" if given.before else ""
            print(f"{what:<46}{then}{'-' if n is None else format(n, ','):>9}")
        if given.json:
            details["walks"] = walks
            result = {"figures": figures, "details": details}
            given.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
