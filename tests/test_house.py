"""The house keeps its own rules: what one can read, one tree of errors, nothing hidden.

Each rule is a function from a file to what breaks it; each is shown a break that it must find.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import house
import pytest

from redhost.registry import errors

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli.py", "commands", "core", "registry", "src", "plugins", "tests")
LINES, FUNCTION_LINES = 600, 50  # where a concept ends is for a reader to say, not for a limit

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class File:
    """A source file: where it is, and what stands in it."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def is_test(self) -> bool:
        return "tests" in Path(self.name).parts

    @property
    def is_quiet(self) -> bool:
        return self.name.startswith(("core/", "registry/"))

    @property
    def is_host(self) -> bool:
        return self.name.startswith(("cli.py", "commands/", "core/", "registry/"))


def read_files() -> Iterator[File]:
    for top in FOLDERS:
        found = sorted((ROOT / top).rglob("*.py")) or [ROOT / top]
        for path in found:
            if not path.is_symlink():
                yield File(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))


@pytest.fixture(scope="module")
def files() -> list[File]:
    found = list(read_files())
    assert len(found) > 600
    return found


def nodes(file: File, *kinds: type[ast.AST]) -> list:
    return [x for x in file.nodes if isinstance(x, kinds)]


def public(body: list[ast.stmt]) -> list[Function | ast.ClassDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [x for x in body if isinstance(x, kinds) and not x.name.startswith("_")]


# -- what one can read ----------------------------------------------------------------------------


def long_files(file: File) -> Iterator[str]:
    lines = len(file.lines)
    if lines > LINES:
        yield f"{lines} lines"


def long_functions(file: File) -> Iterator[str]:
    for f in nodes(file, ast.FunctionDef, ast.AsyncFunctionDef):
        text = file.lines[f.lineno - 1 : f.end_lineno]
        lines = sum(not line.lstrip().startswith("#") for line in text)  # what explains, no line
        if ast.get_docstring(f) is not None:
            lines -= f.body[0].end_lineno - f.body[0].lineno + 1
        if lines > FUNCTION_LINES:
            yield f"{f.name}: {lines} lines"


def listed_inside(file: File) -> Iterator[str]:
    """``__all__`` says what is public: no module of a room has one, but for what re-exports."""
    if file.is_host and not file.name.endswith("__init__.py"):
        for x in nodes(file, ast.Assign):
            if any(ast.unparse(t) == "__all__" for t in x.targets):
                yield f"line {x.lineno}: __all__"


def given_a_host(file: File) -> Iterator[str]:
    """What composing needs is a Session: nothing outside class Host is given a Host."""
    if file.name.startswith("core/"):
        yield from house.given_host(file.tree)


BANNED = house.read_banned((ROOT / "tools/banned_words.txt").read_text("utf-8"))


def private_words(file: File) -> Iterator[str]:
    """Names and prose keep to the field's terms: see ``tools/banned_words.txt``."""
    if not file.name.endswith(("test_house.py", "test_house_figures.py")):  # which have examples
        names, prose = house.count_words(file.text, BANNED)
        yield from sorted(names | prose)


def undocumented(file: File) -> Iterator[str]:
    if not ast.get_docstring(file.tree):
        yield "the module"
    top = public(file.tree.body)
    members = [m for c in top if isinstance(c, ast.ClassDef) for m in public(c.body)]
    yield from (x.name for x in (*top, *members) if not ast.get_docstring(x))


# -- nothing hidden -------------------------------------------------------------------------------


def private_imports(file: File) -> Iterator[str]:
    for x in nodes(file, ast.ImportFrom):
        names = {a.name for a in x.names} - {"__version__"}
        yield from (f"from {x.module} import {n}" for n in names if n.startswith("_"))


def remembering_forwards(file: File) -> Iterator[str]:
    """A forward pass leaves its module as it was: what it keeps, another thread would find."""
    for f in nodes(file, ast.FunctionDef):
        for x in ast.walk(f) if f.name == "forward" else ():
            if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store):
                yield ast.unparse(x)


CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault"}
CHANGES |= {"sort", "update"}


TABLES = {"core/bus/signals.py": {"SIGNALS"}, "core/tasks.py": {"HEADS", "UNITS"}}
"""What a module registers in as it is imported, by name and once: no state of a run."""


def global_state(file: File) -> Iterator[str]:
    """Names of the module that its functions assign to, or change in place."""
    body, tables = file.tree.body, TABLES.get(file.name, set())
    targets = [t for x in body if isinstance(x, ast.Assign) for t in x.targets]
    targets += [x.target for x in body if isinstance(x, ast.AnnAssign)]
    known = {x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)}
    for f in nodes(file, ast.FunctionDef, ast.AsyncFunctionDef):
        inside = list(ast.walk(f))
        own = {x.id for x in inside if isinstance(x, ast.Name) and is_stored(x)}
        own |= {x.arg for x in inside if isinstance(x, ast.arg)}
        for x in inside:
            if isinstance(x, ast.Global):
                yield from x.names
            elif isinstance(name := changed(x), ast.Name) and name.id in known - own - tables:
                yield name.id


def is_stored(x: ast.expr) -> bool:
    return isinstance(getattr(x, "ctx", None), ast.Store | ast.Del)


def changed(x: ast.AST) -> ast.expr | None:
    """Return what an expression changes in place, if it does."""
    if isinstance(x, ast.Subscript) and is_stored(x):
        return x.value
    if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute) and x.func.attr in CHANGES:
        return x.func.value
    return None


PYTHON_COMMAND = "registry/environment/__init__.py"  # where python_command is
STARTS = r"sys\.executable|os\.(exec|spawn|posix_spawn|system|popen|startfile)\w*"
STARTS += r"|(\w+\.)*ProcessPoolExecutor|multiprocessing\.(Process|Pool|Manager)"
STARTS += r"|(\w+\.)*(get_context|set_start_method)\((?!'fork'\)).*\)"  # a fork keeps its modules
STARTS += r"|[\[(]'(python|pip)[\d.]*'[,\])].*"  # a command that begins so


def other_pythons(file: File) -> Iterator[str]:
    """`python_command` alone says how Python is started: else the current folder could run."""
    kinds = (ast.Attribute, ast.Name, ast.Call, ast.List, ast.Tuple)
    for x in nodes(file, *kinds) if file.name != PYTHON_COMMAND else ():
        if re.fullmatch(STARTS, text := ast.unparse(x), re.DOTALL):
            yield f"line {x.lineno}: {text}"


AROUND = r"sys\.__std(out|err)__|sys\.std(out|err)\.(buffer|detach|fileno)\b.*|os\.write\(.*"
AROUND += r"|Console\(.*\b(file|stderr)=.*|open\('/dev/(tty|stdout|stderr)'.*"
STREAMS = {
    "commands/printing.py",  # the place itself
    # Its standard output is frames, and goes to nobody's terminal.
    "plugins/redhost-ray/src/redhost_ray/worker.py",
}


def other_printing(file: File) -> Iterator[str]:
    """Commands print on the streams that `cli.main` gives them, which escape control codes."""
    for x in nodes(file, ast.Attribute, ast.Call) if file.name not in STREAMS else ():
        text = ast.unparse(x)
        if re.fullmatch(AROUND, text, re.DOTALL) or (file.is_quiet and text.startswith(PRINTS)):
            yield f"line {x.lineno}: {text}"


PRINTS = ("print(", "click.echo(", "click.secho(", "sys.stdout.write(", "sys.stderr.write(")


# -- one tree of errors ---------------------------------------------------------------------------

TREE = {n for n, x in vars(errors).items() if isinstance(x, type)}
PYTHON = {"NotImplementedError", "TypeError", "ValueError"}
CONTROL = {"ArchiveError", "PassEnded", "Refused"}  # no errors: each ends something, and is caught
ELSEWHERE = {
    "commands/lazy.py": {"click.UsageError"},  # click prints the usage with it
    "registry/atomic.py": {"OSError"},  # no regular file: what a disk would say
    # What importlib takes for "no byte code" and for a failed import; what the command line prints.
    "registry/environment/importing.py": {"OSError", "ImportError", "KeyboardInterrupt"},
    "src/redhost/testing/fault_injection.py": {
        "OSError",
        "RuntimeError",
    },  # what a disk says; a broken test
}


@cache
def makers() -> dict[str, str]:
    """Return what the host's functions return, by their names: some make an error to raise."""
    found = [f for x in read_files() if x.is_host for f in nodes(x, ast.FunctionDef)]
    return {f.name: ast.unparse(f.returns) for f in found if f.returns is not None}


@cache
def heirs() -> set[str]:
    """Return the classes of the host that inherit from the tree, or from Python's own."""
    classes = [c for x in read_files() if x.is_host for c in nodes(x, ast.ClassDef)]
    return {c.name for c in classes if {ast.unparse(b) for b in c.bases} & (TREE | PYTHON)}


def strange_errors(file: File) -> Iterator[str]:
    """What is raised is of the tree; what merely ends a pass early is caught in the same file."""
    if not file.is_host:
        return
    own = {c.name for c in nodes(file, ast.ClassDef) if c.name.startswith("_")}
    allowed = TREE | PYTHON | heirs() | CONTROL | own | ELSEWHERE.get(file.name, set())
    for x in nodes(file, ast.Raise):
        if isinstance(x.exc, ast.Call):
            called = ast.unparse(x.exc.func)
            made = makers().get(called.rpartition(".")[2], called)
            if made not in allowed:
                yield made


PROSE = {"expected", "found", "hint", "message", "problem", "reason"}


def compared_prose(file: File) -> Iterator[str]:
    """What is said to people decides nothing: a refusal has a type or a code for that."""
    if not file.is_host:
        return
    caught = {x.name for x in nodes(file, ast.ExceptHandler)} - {None}
    for x in nodes(file, ast.Compare):
        is_there = isinstance(x.ops[0], ast.Is | ast.IsNot)  # whether anything is said at all
        for part in () if is_there else (x.left, *x.comparators):
            text = isinstance(part, ast.Call) and ast.unparse(part) in {f"str({e})" for e in caught}
            if text or (isinstance(part, ast.Attribute) and part.attr in PROSE):
                yield f"line {x.lineno}: {ast.unparse(x)}"


# -- the rules, and a break of each ---------------------------------------------------------------

Rule = Callable[[File], Iterator[str]]

ANYWHERE: list[Rule] = [long_files, long_functions, private_imports, private_words]
SOURCES: list[Rule] = [
    compared_prose,
    given_a_host,
    global_state,
    listed_inside,
    other_printing,
    other_pythons,
    remembering_forwards,
    strange_errors,
    undocumented,
]

BREAKS = {
    long_files: ["\n" * (LINES + 1)],
    long_functions: ["def f():\n" + " pass\n" * FUNCTION_LINES],
    private_imports: ["from .other import _name", "from redhost.core.bus.bus import Bus, _name"],
    compared_prose: [
        "if e.hint != HINT: raise",
        "if 'no such' in refusal.reason: pass",
        "try: f()\nexcept ValueError as e:\n if str(e) == 'x': pass",
    ],
    listed_inside: ["__all__ = ['f']\ndef f(): ..."],
    given_a_host: ["def f(host: Host): ...", "class A:\n def f(self, host: Host | None): ..."],
    private_words: ["told = 1", "x = 1  # what the crew said"],
    undocumented: ["'''Doc.'''\nclass A:\n '''Doc.'''\n def f(self): ...", "x = 1"],
    remembering_forwards: ["class A:\n def forward(self, z):\n  self.last = z"],
    global_state: [
        "SEEN = {}\ndef f(x): SEEN[x] = 1",
        "SEEN: list[int] = []\ndef f(x): SEEN.append(x)",
        "n = 0\ndef f():\n global n\n n = 1",
    ],
    other_printing: [
        "sys.__stdout__.write('x')",
        "os.write(1, b'x')",
        "print('x')",
        "f(sys.stdout.buffer)",
        "Console(stderr=True)",
    ],
    other_pythons: [
        "subprocess.run([sys.executable, '-m', 'pip'])",
        "os.execv(p, [])",
        "multiprocessing.get_context('spawn')",
        "concurrent.futures.ProcessPoolExecutor()",
        "run(['python3', '-m', 'pip'])",
    ],
    strange_errors: ["raise RuntimeError('x')", "class Odd(Exception): ...\nraise Odd('x')"],
}


@pytest.mark.parametrize("rule", [*ANYWHERE, *SOURCES], ids=lambda r: r.__name__)
def test_nothing_breaks(rule, files) -> None:
    covered = [f for f in files if rule in ANYWHERE or not f.is_test]
    assert {f.name: found for f in covered if (found := list(rule(f)))} == {}


@pytest.mark.parametrize(
    ("rule", "text"),
    [pytest.param(r, t, id=r.__name__) for r, texts in BREAKS.items() for t in texts],
)
def test_a_break_is_found(rule, text) -> None:
    assert list(rule(File("core/some.py", text)))


def test_every_rule_is_shown_a_break() -> None:
    assert set(BREAKS) == {*ANYWHERE, *SOURCES}


@pytest.mark.parametrize(
    "text",
    [
        "SEEN = {}\ndef f(SEEN): SEEN[1] = 1",
        "SEEN = {}\ndef f():\n SEEN = {}\n SEEN[1] = 1",
        "SEEN = {}\ndef f(): return SEEN[1]",
    ],
)
def test_names_of_a_functions_own_are_no_global_state(text) -> None:
    assert list(global_state(File("core/some.py", text))) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert house.circles(house.import_graph()) == []


def test_a_circle_is_found() -> None:
    assert house.circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_no_contract_of_imports_has_an_exception() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert [c for c in settings["importlinter"]["contracts"] if c.get("ignore_imports")] == []
