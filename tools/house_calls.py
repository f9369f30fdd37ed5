"""Trace whole commands: the functions of the host that each one enters, and how often.

- **Functions entered**: distinct (file, qualified name, first line) of functions of the package
  ``redhost``, seen by ``sys.setprofile`` and ``threading.setprofile`` in a fresh process, what
  importing runs included; bodies of modules and classes, lambdas, comprehensions and generator
  expressions do not count. Worker processes are not traced.
- ``predict`` answers one text on the demo's composition; ``recompose`` composes the demo's five
  experts in an empty home; ``add`` adds a wheel to these five, in an environment of its own: the
  expert range3 under another name.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import venv
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["ROOT", "WALKS", "Function", "Walk", "public_names", "python", "trace", "walk"]

ROOT = Path(__file__).resolve().parent.parent
WALKS = ("predict", "recompose", "add")
TEXT = "What is 37 plus 12?"
EXPERTS = 5
"""The demo's."""


@dataclass(frozen=True)
class Function:
    """A function that was entered.

    Attributes:
        file: Its file, relative to the root.
        qualified: Its qualified name.
        line: Its first line.
        calls: How often it was entered.
    """

    file: str
    qualified: str
    line: int
    calls: int

    @property
    def name(self) -> str:
        """The name without that of its class."""
        return self.qualified.rpartition(".")[2]


@dataclass(frozen=True)
class Walk:
    """A traced command.

    Attributes:
        functions: What it entered, sorted.
        experts: The number of experts that it is about.
    """

    functions: tuple[Function, ...]
    experts: int


def python(*arguments: str, program: str = sys.executable, **variables: str) -> str:
    """Run Python on one thread, without redhost's variables, and return its output.

    No plugin is trusted, whatever the user trusts.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REDHOST_")}
    nobody = str(ROOT / "build" / "no-such-config")
    done = subprocess.run(
        [program, *arguments],
        cwd=ROOT,
        env={**inherited, "OMP_NUM_THREADS": "1", "REDHOST_CONFIG": nobody, **variables},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def compose(home: Path) -> Path:
    """Compose a home, as commands other than `recompose` need one."""
    python("-m", "redhost", "recompose", "--home", str(home))
    return home


def walk(command: str, *, composed: Path | None = None) -> Walk:
    """Trace a command in a fresh process, on a home of its own.

    Args:
        command: Its name.
        composed: A home to copy, for commands that need one; by default one is composed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home, out = folder / "home", folder / "trace.json"
        if command != "recompose":
            compose(home) if composed is None else shutil.copytree(composed, home)
        program, extra = sys.executable, {"predict": [TEXT]}.get(command, [])
        if command == "add":
            # The tests' environments see this one's packages in the same way.
            venv.create(folder / "env", symlinks=True)
            site = next((folder / "env" / "lib").glob("python*")) / "site-packages"
            purelib = sysconfig.get_path("purelib")
            (site / "real.pth").write_text(f"import site; site.addsitedir({purelib!r})\n")
            program, extra = str(folder / "env/bin/python"), [str(write_newcomer(folder))]
        python(__file__, str(out), command, "--home", str(home), *extra, program=program)
        functions = tuple(Function(*row) for row in json.loads(out.read_text("utf-8")))
    return Walk(functions=functions, experts=EXPERTS + (command == "add"))


def write_newcomer(folder: Path) -> Path:
    """Write a wheel of the expert range3 under another name."""
    spec = importlib.util.find_spec("red_expert_range3")
    if spec is None or spec.origin is None:
        raise SystemExit("red-expert-range3 is not installed: run make .venv/packages")
    module, info = "red_expert_newcomer", "red_expert_newcomer-0.1.0.dist-info"
    files = {p.name: p.read_bytes() for p in Path(spec.origin).parent.iterdir() if p.is_file()}
    # What it does off its domain was measured where range3 was no neighbour.
    manifest = {**json.loads(files["expert.json"]), "id": "newcomer", "off_domain": None}
    files["expert.json"] = json.dumps(manifest).encode()
    members = {f"{module}/{name}": data for name, data in files.items()} | {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: red-expert-newcomer\nVersion: 0.1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[redhost.experts]\nnewcomer = {module}\n".encode(),
    }
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((f"{info}/RECORD", "", ""))
    path = folder / f"{module}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, f"{info}/RECORD": record.getvalue().encode()}.items():
            archive.writestr(name, data)
    return path


def trace(arguments: list[str]) -> list[tuple[str, str, int, int]]:
    """Run a command in this process; return what it entered."""
    # What prepares the environment's own import of redhost is no part of the command.
    places = tuple(str((ROOT / p).resolve()) for p in ("core", "registry", "commands", "src"))
    inside = (*(f"{p}{os.sep}" for p in places), str(ROOT / "cli.py"))
    entered: Counter[CodeType] = Counter()
    resolved: dict[str, str] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered[frame.f_code] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        importlib.import_module("redhost.cli").main(arguments)
    except SystemExit as e:
        if e.code:  # a request that failed is not counted
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    rows: Counter[tuple[str, str, int]] = Counter()
    for code, calls in entered.items():
        file = resolved.setdefault(code.co_filename, os.path.realpath(code.co_filename))
        # The body of a class is not a function: only functions have fast locals (CO_OPTIMIZED).
        function = code.co_name[0] != "<" and code.co_flags & inspect.CO_OPTIMIZED
        if function and file.startswith(inside):
            name = Path(file).relative_to(ROOT).as_posix()
            rows[name, code.co_qualname, code.co_firstlineno] += calls
    return [(*key, calls) for key, calls in sorted(rows.items())]


COUNT = """
import ast, importlib.util, json
from pathlib import Path
import click, redhost
from redhost.cli import cli

names = set(redhost.__all__)
for module in "errors frames pipelines plugins sklearn testing".split():
    # Read and not imported: some need libraries that are not installed everywhere.
    source = Path(importlib.util.find_spec(f"redhost.{module}").origin).read_text("utf-8")
    [public] = (n.value for n in ast.parse(source).body
                if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    names |= {module, *(f"{module}.{name}" for name in ast.literal_eval(public))}

def options(command):
    yield sum(isinstance(p, click.Option) for p in command.params)
    for inner in getattr(command, "commands", {}).values():
        yield from options(inner)

print(json.dumps([len(names), max(options(cli))]))
"""


def public_names() -> dict[str, float]:
    """Return how many names users may rely on, and the most options of a command."""
    names, options = json.loads(python("-c", COUNT))
    return {"public names": names, "options of a command": options}


def _main(out: str, *arguments: str) -> None:
    rows: Any = None
    with contextlib.redirect_stdout(io.StringIO()):
        rows = trace([*arguments])
    Path(out).write_text(json.dumps(rows), "utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
