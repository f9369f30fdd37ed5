"""constraints.txt has everything that make installs, in versions that are asked for."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import install
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = (ROOT / install.CONSTRAINTS).read_text("utf-8").splitlines()
WRITTEN = [Requirement(line) for line in LINES if not line.startswith("#")]
PINNED = {canonicalize_name(r.name): r for r in WRITTEN}
PYTHON = str(WRITTEN[0].marker).partition("==")[2].strip(' "')
OURS = {
    canonicalize_name(tomllib.loads(p.read_text("utf-8"))["project"]["name"])
    for p in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
}


def version(requirement: Requirement) -> str:
    [pin] = requirement.specifier
    assert pin.operator == "=="
    return pin.version


Seen = set[tuple[str, frozenset[str]]]


def needed(requirement: Requirement, seen: Seen) -> Iterator[Requirement]:
    """Yield a requirement, and what the installed distribution asks for in turn."""
    name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
    yield requirement
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for line in requires(name) or ():
        child = Requirement(line)
        marker = child.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in extras or {""}):
            yield from needed(child, seen)


def makefile_variables() -> dict[str, str]:
    text = (ROOT / "Makefile").read_text("utf-8")
    return dict(re.findall(r"^([A-Z]+) := (.*)$", text, re.MULTILINE))


def test_every_line_is_one_version_for_one_python() -> None:
    assert len(PINNED) == len(WRITTEN) > 200
    assert {str(r.marker) for r in WRITTEN} == {f'python_version == "{PYTHON}"'}
    assert f"Python {PYTHON};" in LINES[0]
    assert not [r.name for r in WRITTEN if "+" in version(r)]
    assert not OURS & PINNED.keys()


@pytest.mark.skipif(
    f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON, reason="of another Python"
)
@pytest.mark.parametrize(
    "wanted", ["redhost[dev,gguf]", "redhost-author", "redhost-serve", "redhost-words"]
)
def test_whatever_developers_need_has_a_version_that_is_admitted(wanted: str) -> None:
    found = [r for r in needed(Requirement(wanted), set()) if canonicalize_name(r.name) not in OURS]
    assert found
    assert {r.name for r in found if canonicalize_name(r.name) not in PINNED} == set()
    refused = {
        str(r): str(PINNED[canonicalize_name(r.name)])
        for r in found
        if not r.specifier.contains(version(PINNED[canonicalize_name(r.name)]), prereleases=True)
    }
    assert refused == {}


def test_torch_is_the_version_that_the_steps_name() -> None:
    [torch] = install.STEPS["demo"][0].wanted
    assert Requirement(torch).specifier == PINNED["torch"].specifier


@pytest.mark.parametrize("group", ["BROWSER", "RAY", "ONNX", "LIBRARIES", "FLEET", "SITE"])
def test_what_other_targets_install_has_a_version_too(group: str) -> None:
    for word in makefile_variables()[group].split():
        requirement = Requirement(word.strip("'"))
        assert requirement.specifier.contains(version(PINNED[canonicalize_name(requirement.name)]))


def test_a_report_of_pip_becomes_constraints_without_what_is_ours() -> None:
    def row(name: str, number: str, where: dict[str, object]) -> dict[str, object]:
        return {"metadata": {"name": name, "version": number}, "download_info": where}

    report = {
        "environment": {"python_full_version": "3.12.1"},
        "install": [
            row("Torch", "2.13.0+cpu", {"archive_info": {}}),
            row("click", "8.1", {"archive_info": {}}),
            row("redhost", "0.1.0", {"dir_info": {"editable": True}}),
        ],
    }
    lines = install.pins(report).splitlines()
    assert lines[1:] == [
        'click==8.1; python_version == "3.12"',
        'torch==2.13.0; python_version == "3.12"',
    ]


@pytest.fixture(scope="module")
def folder(make_venv: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that is there already, and sees the pip of this one."""
    folder: Path = make_venv(tmp_path_factory.mktemp("environment") / "venv").folder
    return folder


@pytest.mark.parametrize(("marker", "refused"), [("==", True), ("!=", False)])
def test_a_step_installs_no_other_version_and_another_python_ignores_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str, refused: bool
) -> None:
    wheel = tmp_path / "a_part-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        head = "Metadata-Version: 2.1\nName: a-part\nVersion: 1\n"
        archive.writestr("a_part-1.dist-info/METADATA", head)
        archive.writestr("a_part-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("a_part-1.dist-info/RECORD", "")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f'a-part==2; python_version {marker} "{python}"\n')
    step = install.Step("a part", ("--no-index", "--find-links", str(tmp_path), "a-part"))
    monkeypatch.setattr(install, "STEPS", {"demo": (step,)})
    monkeypatch.setattr(install, "PINNED", ("-c", str(constraints)))
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) if refused else nullcontext():
        install.main(["demo", "--folder", str(folder)])
    installed = [*folder.glob("lib/python*/site-packages/a_part-1.dist-info")]
    assert bool(installed) is not refused
