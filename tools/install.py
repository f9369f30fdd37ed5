"""Fill `.venv` step by step; print before each step its name, its size, and how long it once took.

    python3 tools/install.py demo     for `make demo`: host, server, the demo's experts
    python3 tools/install.py dev      additions for `make test`: linters, type checkers, test tools
    python3 tools/install.py measure  both in a new folder, without pip's cache; for `make sizes`
    python3 tools/install.py constraints [REQUIREMENT ...]
                                      writes constraints.txt anew, for both and for REQUIREMENTs

Versions are those of constraints.txt. Each of its lines has a marker of the Python that it was
written with, so pip ignores it under another, where the newest versions are installed.

It runs before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CONSTRAINTS", "STEPS", "Step", "constrain", "fill", "main", "measure", "page"]
__all__ += ["pins", "size"]

ROOT = Path(__file__).parents[1]
RESULTS = Path("docs/results/install")
CONSTRAINTS = Path("constraints.txt")
HERE = ("--no-build-isolation",)  # otherwise pip would download hatchling for each package
DATA = ("red-backbone-tiny", *(f"red-expert-range{n}" for n in range(1, 6)))
AUTHOR = ("-e", "plugins/redhost-author", "-e", "plugins/redhost-words")
SHIPPED = tuple(word for name in DATA for word in ("-e", f"plugins/{name}"))
AUTHOR = ("-e", "plugins/redhost-author", "-e", "plugins/redhost-words")
PINNED = ("-c", str(CONSTRAINTS))
MIB = 2**20


@dataclass(frozen=True)
class Step:
    """One pip command.

    Attributes:
        title: A description for people.
        wanted: Pip's arguments.
    """

    title: str
    wanted: tuple[str, ...]


STEPS: Mapping[str, tuple[Step, ...]] = {
    "demo": (
        Step("torch", ("torch==2.13.0",)),
        Step(
            "redhost, with transformers",
            ("-e", ".[author]", *AUTHOR, "editables"),
        ),
        Step("the server", (*HERE, "-e", "plugins/redhost-serve")),
        Step("a backbone and five experts", (*HERE, "--no-deps", *SHIPPED)),
    ),
    "dev": (Step("linters, type checkers (with Node.js), test tools", ("-e", ".[dev,gguf]")),),
}
"""The steps that fill an environment, by purpose; ``dev`` comes after ``demo``."""


def fill(
    folder: Path, kind: str, *, known: Mapping[str, Any], options: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Install the steps of a kind.

    Args:
        folder: The virtual environment; created if missing.
        kind: ``demo`` or ``dev``.
        known: Measured steps by title; other steps have no figures.
        options: More arguments for pip, such as the constraints.

    Returns:
        Title, seconds and MiB of each step.

    Raises:
        SystemExit: With pip's code, if a step fails; the message names the step.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    done = []
    for n, step in enumerate(STEPS[kind], 1):
        head = f"[{n}/{len(STEPS[kind])}] {step.title}"
        once = known.get(step.title)
        note = f": {once['mib']:,} MiB, {once['seconds']} s when measured" if once else ""
        print(f"{head}{note}", flush=True)
        before, start = size(folder), time.monotonic()
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        if code := _wait([*command, *options, *step.wanted]):
            raise SystemExit(f"{head}: pip failed with {code}; run the same command again to go on")
        seconds, mib = round(time.monotonic() - start), (size(folder) - before) / MIB
        print(f"      done in {seconds} s", flush=True)
        done.append({"title": step.title, "seconds": seconds, "mib": round(mib)})
    return done


def size(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk, as counted by du."""
    files = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    return sum(512 * file.lstat().st_blocks for file in files)


def measure(out: Path) -> None:
    """Fill a new environment, demo first, without pip's cache; write metrics and the page."""
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="redhost-install-") as temporary:
        folder = Path(temporary, "venv")
        options = [*PINNED, "--no-cache-dir"]
        steps = {kind: fill(folder, kind, known={}, options=options) for kind in STEPS}
        metrics = {
            "schema": "redhost.install/1",
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "torch": _version(folder, "torch"),
            "cache": "none",
            "load": load,
            "steps": steps,
            "mib": round(size(folder) / MIB),
        }
    out.mkdir(parents=True, exist_ok=True)
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", "utf-8")
    (out / "README.md").write_text(page(metrics), "utf-8")
    print(out / "metrics.json")


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page of the measurements."""
    lines = ["| command | step | MiB on disk | seconds |", "|---|---|---|---|"]
    for kind, target in (("demo", "`make demo`"), ("dev", "`make test`")):
        steps = metrics["steps"][kind]
        lines += [f"| {target} | {s['title']} | {s['mib']:,} | {s['seconds']:,} |" for s in steps]
        mib, seconds = (sum(s[key] for s in steps) for key in ("mib", "seconds"))
        lines.append(f"| {target} | **total** | **{mib:,}** | **{seconds:,}** |")
    return "\n".join(
        [
            "# Size and time of an installation",
            "",
            "Generated by `make sizes`, which fills a new environment without pip's cache, so "
            "every byte is downloaded. Seconds depend on the network and on the machine's other "
            "work. Packages of the clone are installed in place and take almost no space.",
            "",
            *lines,
            "",
            f"Python {metrics['python']}, {metrics['system']}, {metrics['cores']} cores, torch "
            f"{metrics['torch']}; load average at the start {metrics['load']}. A torch with CUDA "
            "is much larger ([installing](../../operations.md#install)).",
            "",
        ]
    )


def constrain(folder: Path, requirements: Sequence[str]) -> None:
    """Write the newest versions that suit all steps and requirements together; install nothing.

    Args:
        folder: A filled environment: its pip resolves, its hatchling describes our packages.
        requirements: What is installed beside the steps.
    """
    steps = [step for steps in STEPS.values() for step in steps]
    words = [word for step in steps for word in step.wanted if word not in {*HERE, "--no-deps"}]
    with tempfile.TemporaryDirectory(prefix="redhost-constraints-") as temporary:
        report = Path(temporary, "report.json")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *HERE]
        pip += ["--disable-pip-version-check", "--dry-run", "--ignore-installed"]
        if code := _wait([*pip, "--report", str(report), *words, *requirements]):
            raise SystemExit(f"{CONSTRAINTS}: pip failed with {code}; the file is as it was")
        CONSTRAINTS.write_text(pins(json.loads(report.read_text("utf-8"))), "utf-8")
    print(CONSTRAINTS)


def pins(report: Mapping[str, Any]) -> str:
    """Return the constraints of pip's report of what it would install, but for our own packages.

    A local version, such as that of a torch without CUDA, is left to the index that has it.
    """
    python = ".".join(report["environment"]["python_full_version"].split(".")[:2])
    lines = sorted(
        f"{each['metadata']['name'].lower()}=={each['metadata']['version'].partition('+')[0]}"
        for each in report["install"]
        if "dir_info" not in each["download_info"]
    )
    return "".join(
        [
            f"# Written by `make constraints` with Python {python}; other Pythons ignore it.\n",
            *(f'{line}; python_version == "{python}"\n' for line in lines),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill an environment, measure its steps, or write their versions down."""
    parser = argparse.ArgumentParser(description="Fill an environment, step by step.")
    parser.add_argument("what", choices=[*STEPS, "measure", "constraints"])
    parser.add_argument("requirements", nargs="*", help="what else the constraints are for")
    parser.add_argument("--folder", type=Path, default=Path(".venv"), help="the environment")
    given = parser.parse_args(arguments)
    if sys.version_info < (3, 11):  # noqa: UP036  (make may use any python3)
        raise SystemExit("redhost needs Python 3.11 or newer")
    os.chdir(ROOT)
    if given.what == "measure":
        measure(RESULTS)
    elif given.what == "constraints":
        constrain(given.folder, given.requirements)
    else:
        fill(given.folder, given.what, known=_measured(), options=PINNED)


def _measured() -> Mapping[str, Any]:
    path = RESULTS / "metrics.json"
    metrics = json.loads(path.read_text("utf-8")) if path.exists() else {"steps": {}}
    return {step["title"]: step for steps in metrics["steps"].values() for step in steps}


def _wait(command: Sequence[str]) -> int:
    """Run a command; on a terminal, count the seconds meanwhile."""
    start = time.monotonic()
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait(1)
            except subprocess.TimeoutExpired:
                if sys.stdout.isatty():
                    print(f"      {time.monotonic() - start:.0f} s\r", end="", flush=True)


def _version(folder: Path, dist: str) -> str:
    code = f"from importlib.metadata import version; print(version({dist!r}))"
    done = subprocess.run(
        [folder / "bin" / "python", "-c", code], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
