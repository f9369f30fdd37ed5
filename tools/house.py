"""Measure the code base against its budget: how much there is to read, to enter, and to hold.

    .venv/bin/python tools/house.py              each figure beside its limit and its goal
    .venv/bin/python tools/house.py --json       the figures alone, as JSON
    .venv/bin/python tools/house.py --lower      write what is better than its limit as the limit
    .venv/bin/python tools/house.py --functions add    the functions that ``redhost add`` enters

``budget.toml`` has the limits, which a test holds. The rules (those of walks are in
``house_calls.py``):

- **Statements**: nodes of type ``ast.stmt``, less imports and less bare constants (docstrings of
  modules, classes, functions and attributes, and ``...``). Headers of ``class``, ``def``, ``if``
  and the like count one each, ``__all__`` too.
- **Flags asked outside the bus**: ``head.several``, ``distribution``, ``probabilities`` and
  ``vocabulary``, members of ``Unit``, and comparisons of ``.space``, in the host outside
  ``core/bus``.
- **Parameters**: the most that a function of the host takes, without ``self`` and ``cls``, unless
  click calls it.
- **Vague names**: assignments, parameters and keywords with a name of `VAGUE`.
- **Comments**: per hundred lines that are not blank, docstrings included.
- **Public names**: those of ``redhost`` and of its modules for users, submodules counted once.
- **Words**: of Markdown as it stands, tables and code included; handwritten pages are those of
  ``docs/`` but for results and the reference, CHANGELOG and CONTRIBUTING. tests/test_root_files.py
  limits the policies and AGENTS.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import keyword
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from house_calls import ROOT, WALKS, Walk, public_names, walk

__all__ = ["BUDGET", "WALKS", "Banned", "Limit", "broken", "circles", "comments", "count_words"]
__all__ += ["flags", "given_host", "import_graph", "lowered", "main", "parameters"]
__all__ += ["public_names", "read_banned", "read_budget", "split_name", "statements"]
__all__ += ["text_figures", "vague_names", "walk", "walk_figures"]

BUDGET = ROOT / "tools" / "budget.toml"
HOST = ("core", "registry", "commands", "cli.py", "src")
LAB = "plugins/red-lab/src"
EXPLAINED = ("core/bus", "core/composition", "core/backbones")
"""Where what surprises is explained beside the line."""

DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
VAGUE = frozenset(
    ("found", "own", "known", "made", "wrong", "some", "wanted", "who", "same", "rest")
) | {"aside", "beside"}
FLAGS = frozenset(("several", "distribution", "probabilities", "vocabulary"))


# -- what stands in files --------------------------------------------------------------------------


def sources(*places: str) -> list[Path]:
    """Return the Python files of folders, or single files; links are left out."""
    tops = [ROOT / place for place in places]
    return sorted(p for top in tops for p in (top.rglob("*.py") if top.is_dir() else (top,))
                  if not p.is_symlink())  # fmt: skip


def statements(source: str) -> int:
    """Count statements by the rule above."""
    return sum(
        isinstance(n, ast.stmt)
        and not isinstance(n, (ast.Import, ast.ImportFrom))
        and not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        for n in ast.walk(ast.parse(source))
    )


def flags(tree: ast.AST) -> int:
    """Count the questions to a head, a unit or an output space in one file."""
    asked = 0
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute):
            whose = ast.unparse(n.value).rpartition(".")[2]
            asked += whose == "Unit" or (whose == "head" and n.attr in FLAGS)
        elif isinstance(n, ast.Compare) and isinstance(n.left, ast.Attribute):
            asked += n.left.attr == "space"
    return asked


def parameters(tree: ast.AST) -> int:
    """Return the most parameters of a function that click does not call."""
    most = 0
    for n in ast.walk(tree):
        if not isinstance(n, DEFS) or any("click" in ast.unparse(d) for d in n.decorator_list):
            continue
        names = [a.arg for a in (*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs)]
        most = max(most, len(names) - (names[:1] in (["self"], ["cls"])))
    return most


def vague_names(tree: ast.AST) -> int:
    """Count assignments, parameters and keywords that say nothing of what they are."""
    return sum(
        (isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in VAGUE)
        or (isinstance(n, (ast.arg, ast.keyword)) and n.arg in VAGUE)
        for n in ast.walk(tree)
    )


def comments(source: str) -> int:
    """Count comments."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def words(*paths: Path) -> int:
    """Count the words of text files."""
    return sum(len(path.read_text("utf-8").split()) for path in paths)


def handwritten() -> list[Path]:
    """Return the pages that people write, for users to read."""
    generated = {ROOT / "docs" / name for name in ("results", "reference")}
    pages = (p for p in (ROOT / "docs").rglob("*.md") if not generated & {*p.parents})
    return [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *pages]


def text_figures() -> dict[str, float]:
    """Measure the source text: figures by name."""
    figures: dict[str, float] = {}
    places = {"core": "core", "registry": "registry", "commands": "commands", "red-lab": LAB}
    for room, place in places.items():
        texts = [p.read_text("utf-8") for p in sources(place)]
        figures[f"statements: {room}"] = sum(map(statements, texts))
        figures[f"files: {room}"] = len(texts)
    figures["longest file: red-lab"] = max(len(p.read_bytes().splitlines()) for p in sources(LAB))
    trees = {p: ast.parse(p.read_text("utf-8")) for p in sources(*HOST)}
    bus = ROOT / "core" / "bus"
    figures["flags asked outside the bus"] = sum(
        flags(tree) for path, tree in trees.items() if bus not in path.parents
    )
    figures["parameters of a function"] = max(map(parameters, trees.values()))
    figures["vague names"] = sum(map(vague_names, trees.values()))
    figures["circles of imports"] = len(circles(import_graph()))
    explained = [p.read_text("utf-8") for p in sources(*EXPLAINED)]
    lines = sum(bool(line.strip()) for text in explained for line in text.splitlines())
    figures["comments in a hundred lines"] = round(100 * sum(map(comments, explained)) / lines, 1)
    figures["words: README"] = words(ROOT / "README.md")
    figures["words: handwritten pages"] = words(*handwritten())
    return figures


# -- words -----------------------------------------------------------------------------------------


class Banned(NamedTuple):
    """Banned words: in names and prose, in parts of names, as whole names; exceptions."""

    everywhere: frozenset[str]
    names: frozenset[str]
    exact: frozenset[str]
    allowed: frozenset[str] = frozenset()


def read_banned(text: str) -> Banned:
    """Read lines of ``KIND: word word``; ``#`` starts a comment."""
    listed: dict[str, set[str]] = {kind: set() for kind in Banned._fields}
    for line in text.splitlines():
        kind, colon, after = line.partition("#")[0].partition(":")
        if colon:
            listed[kind.strip()].update(after.split())
    return Banned(**{kind: frozenset(names) for kind, names in listed.items()})


def split_name(name: str) -> list[str]:
    """Split a name at underscores and capitals, into lower-case words."""
    return [w.lower() for w in WORD.findall(name)]


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
                names[token.string] += 1
        for name in [*names]:  # each once: names recur
            parts = banned_parts.intersection(split_name(name))
            if not (parts or name in banned.exact) or name in banned.allowed:
                del names[name]
    strange_words = banned.everywhere - banned.allowed
    counted = Counter(w for text in prose for w in split_name(text) if w in strange_words)
    return +names, counted


# -- what imports what -----------------------------------------------------------------------------


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, largest first (Tarjan)."""
    low: dict[str, int] = {}
    index: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

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
            components.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted((c for c in components if len(c) > 1), key=lambda c: (-len(c), c))


def import_graph() -> dict[str, set[str]]:
    """Return the imports between modules of core and registry, of whatever level.

    A module does not count as importing its package.
    """
    files: dict[str, Path] = {}
    for path in sources("core", "registry"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(("redhost", *(p for p in parts if p != "__init__")))] = path
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                graph[name].update(a.name for a in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                named = {f"{base}.{a.name}" for a in node.names}
                graph[name] |= (named & files.keys()) | ({base} if named - files.keys() else set())
        graph[name] = (graph[name] & files.keys()) - {name}
    return graph


def given_host(tree: ast.AST) -> list[str]:
    """Return the functions outside class Host that are given a Host.

    That is, with a parameter whose annotation names ``Host``, or one named ``host`` without any.
    """
    names = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, DEFS):
            a = node.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            types = [ast.unparse(g.annotation) if g.annotation else g.arg.title() for g in given]
            if re.search(r"\bHost\b", " ".join(types)):
                names.append(node.name)
        if not (isinstance(node, ast.ClassDef) and node.name == "Host"):
            names += given_host(node)
    return names


# -- the budget ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a figure may be.

    Attributes:
        limit: The most, or the least.
        goal: What to arrive at.
        at_least: Whether the limit is the least.
    """

    limit: float
    goal: float
    at_least: bool = False

    def is_broken_by(self, figure: float) -> bool:
        """Return whether a figure is beyond the limit."""
        return figure < self.limit if self.at_least else figure > self.limit


def read_budget(text: str) -> dict[str, Limit]:
    """Read the limits of ``budget.toml``, by the name of the figure."""
    tables = tomllib.loads(text)
    return {
        name: Limit(limit=numbers[kind], goal=numbers["goal"], at_least=kind == "least")
        for table in tables.values()
        for name, numbers in table.items()
        for kind in ("most", "least")
        if kind in numbers
    }


def broken(figures: Mapping[str, float], budget: Mapping[str, Limit]) -> list[str]:
    """Return a line for each figure that breaks its limit, and for each that has none."""
    lines = [f"{name}: no limit in budget.toml" for name in figures if name not in budget]
    for name, figure in figures.items():
        if name in budget and budget[name].is_broken_by(figure):
            kind = "least" if budget[name].at_least else "most"
            lines.append(f"{name}: {figure:g}, at {kind} {budget[name].limit:g}")
    return lines


def lowered(text: str, figures: Mapping[str, float]) -> str:
    """Return the budget with every limit that a figure is better than set to that figure."""
    budget = read_budget(text)
    for name, figure in figures.items():
        if name in budget and not budget[name].is_broken_by(figure):
            line = rf'^("{re.escape(name)}" = \{{ (?:most|least) = )[\d.]+'
            text = re.sub(line, rf"\g<1>{figure:g}", text, flags=re.MULTILINE)
    return text


def walk_figures(walks: Mapping[str, Walk]) -> dict[str, float]:
    """Return the figures of traced commands, by name."""
    figures: dict[str, float] = {}
    for name, traced in walks.items():
        figures[f"functions entered: {name}"] = len(traced.functions)
        figures[f"files entered: {name}"] = len({f.file for f in traced.functions})
        for reader in ("read_expert", "check_canary"):
            calls = sum(f.calls for f in traced.functions if f.name == reader)
            figures[f"{reader} an expert: {name}"] = round(calls / traced.experts, 2)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, or the functions that one command enters."""
    parser = argparse.ArgumentParser(description="Measure the code base against its budget.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--lower", action="store_true", help="lower the limits to what is measured")
    parser.add_argument("--functions", choices=WALKS, help="list the functions that this enters")
    given = parser.parse_args(arguments)
    if given.functions:
        for f in walk(given.functions).functions:
            print(f"{f.calls:>6}  {f.file}:{f.qualified}")
        return
    figures = {**text_figures(), **public_names(), **walk_figures({w: walk(w) for w in WALKS})}
    text = BUDGET.read_text("utf-8")
    if given.lower:
        BUDGET.write_text(lowered(text, figures), "utf-8")
    if given.json:
        print(json.dumps(figures, indent=1))
        return
    budget = read_budget(text)
    print(f"{'':<42}{'measured':>10}{'limit':>10}{'goal':>10}")
    for name, figure in figures.items():
        limits = budget.get(name)
        print(f"{name:<42}{figure:>10g}", *(f"{n:>9g}" for n in (limits.limit, limits.goal))
              if limits else ())  # fmt: skip
    for line in broken(figures, budget):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
