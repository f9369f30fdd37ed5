"""Trace one request of the host: the functions that it enters, and the calls between files.

- **Functions entered**: distinct (file, qualified name, first line) of functions of the package
  ``redhost``, seen by ``sys.setprofile`` and ``threading.setprofile`` in a fresh process that has
  imported all its modules; bodies of modules and classes, lambdas, comprehensions and generator
  expressions do not count. ``predict`` is the first ``Host.predict`` of an open ``Host``,
  ``recompose`` is ``Host.recompose`` on a home that has the features cached, ``check`` is
  ``resolve_targets`` and ``static_check`` of one installed id, nothing computed. Names with ``cli``
  are whole commands. Worker processes are not traced.
- **Cross-file calls**: entries of such functions, for a generator each time that it is resumed, if
  the nearest frame of ``redhost`` below on the stack, of whatever kind, is in another file or if
  there is none.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["ROOT", "WALKS", "follow", "follow_all", "python"]

ROOT = Path(__file__).resolve().parent.parent
WALKS = ("predict", "check", "recompose", "cli-predict", "cli-check", "cli-recompose")
TEXT, EXPERT = "What is 37 plus 12?", "range1"
RESOLVERS = ("resolve_targets", "find_targets", "resolve")
CHECKERS = ("static_check", "check_static", "check_target")


def python(*arguments: str) -> str:
    """Run this Python on one thread and return its output."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("REDHOST_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**given, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def _find(names: Sequence[str]) -> Callable[..., Any]:
    """Return the first function of the package that has one of these names."""
    for name in names:
        for module in [m for n, m in sys.modules.items() if n.startswith("redhost.")]:
            function = vars(module).get(name)
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                return function
    raise LookupError(names)


def _action(walk: str, home: Path, redhost: Any) -> Callable[[], object]:
    """Return the call to trace; the whole command if its functions have other names now."""

    def command() -> None:
        name = walk.removeprefix("cli-")
        what = {"predict": [TEXT], "check": [EXPERT], "recompose": []}[name]
        try:
            importlib.import_module("redhost.cli").main([name, "--home", str(home), *what])
        except SystemExit as e:
            if e.code:  # a request that failed is not counted
                raise

    with contextlib.suppress(AttributeError, LookupError, TypeError):
        if walk == "check":
            resolve, check = _find(RESOLVERS), _find(CHECKERS)
            given: dict[str, Any] = {"home": home, "backbone": None}
            inspect.signature(resolve).bind([EXPERT], **given)
            return lambda: [check(t) for t in resolve([EXPERT], **given)]
        if walk in {"predict", "recompose"}:
            host = redhost.Host.open(home)
            return partial(host.predict, [TEXT]) if walk == "predict" else partial(host.recompose)
    return command


def follow(walk: str, home: Path) -> dict[str, Any]:
    """Trace one request in this process: the functions entered, and the calls between files."""
    redhost = importlib.import_module("redhost")
    for module in pkgutil.walk_packages(redhost.__path__, "redhost."):
        if not module.name.endswith(".__main__"):
            # A module for a library that is not installed cannot be part of a request.
            with contextlib.suppress(ImportError, redhost.MissingError):
                importlib.import_module(module.name)
    inside = tuple(f"{p}{os.sep}" for p in redhost.__path__)
    calls: list[tuple[CodeType, CodeType | None]] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            below = frame.f_back
            while below is not None and not below.f_code.co_filename.startswith(inside):
                below = below.f_back
            calls.append((frame.f_code, below.f_code if below else None))

    action = _action(walk, home, redhost)
    with contextlib.redirect_stdout(io.StringIO()):
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            action()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def name(code: CodeType | None) -> str:
        path = Path(code.co_filename).resolve() if code else Path("(outside)")
        return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()

    # The body of a class is not a function: only functions have fast locals (CO_OPTIMIZED).
    real = [c for c in calls if c[0].co_name[0] != "<" and c[0].co_flags & inspect.CO_OPTIMIZED]
    entered = Counter((name(c), c.co_qualname, c.co_firstlineno) for c, _ in real)
    cross = Counter((name(b), name(c)) for c, b in real if name(b) != name(c))
    return {
        "command": getattr(action, "__name__", "") == "command",
        "functions": [[*key, n] for key, n in sorted(entered.items())],
        "cross": [[*key, n] for key, n in sorted(cross.items(), key=lambda x: (-x[1], x[0]))],
    }


def follow_all(walks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Trace requests, each in a fresh process on a copy of a home composed once."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        composed = Path(folder, "home")
        for walk in ("home", *walks):
            home, out = Path(folder, walk), Path(folder, f"{walk}.json")
            try:
                if home == composed:
                    python("-m", "redhost", "recompose", "--home", str(home))
                    continue
                shutil.copytree(composed, home)
                python(__file__, walk, str(home), str(out))
            except (OSError, subprocess.CalledProcessError) as e:
                why = getattr(e, "stderr", "").strip().splitlines()[-1:] or [str(e)]
                print(f"{walk}: {why[0]}", file=sys.stderr)
                continue
            found[walk] = json.loads(out.read_text("utf-8"))
            if found[walk]["command"] and not walk.startswith("cli-"):
                print(f"{walk}: the whole command, its functions not found", file=sys.stderr)
    return found


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(follow(sys.argv[1], Path(sys.argv[2]))), "utf-8")
