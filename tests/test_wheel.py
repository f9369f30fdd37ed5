"""The built wheels: nothing missing, nothing extra, and they work without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
import release

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT, *sorted(p.parent for p in (ROOT / "plugins").glob("*/pyproject.toml"))]

BUILD = """
import os, sys, tomllib
for project in sys.argv[2:]:
    os.chdir(project)
    with open("pyproject.toml", "rb") as file:
        assert tomllib.load(file)["build-system"]["build-backend"] == "hatchling.build"
    from hatchling.build import build_wheel
    build_wheel(sys.argv[1])
"""
"""What `python -m build` and pip do, of all projects in one process: each would start three."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every package of the project as a wheel, by distribution."""
    out = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-c", BUILD, str(out), *map(str, PACKAGES)]
    subprocess.run(command, check=True, capture_output=True)
    release.write_digests(out)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {n for n in archive.namelist() if ".dist-info/" not in n}


def tracked(*paths: str) -> list[str]:
    done = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, check=True, capture_output=True)
    return done.stdout.decode().splitlines()


def test_the_hosts_wheel_holds_exactly_the_host(wheels: dict[str, Path]) -> None:
    expected = {f"redhost/{n}" for n in tracked("core", "registry", "commands", "cli.py")}
    face = ("src/redhost/*.py", "src/redhost/*.pyi", "src/redhost/py.typed", "src/redhost/testing")
    expected |= {n.removeprefix("src/") for n in tracked(*face)}
    assert names(wheels["redhost"]) == expected


@pytest.mark.parametrize("n", range(1, 6))
def test_an_experts_wheel_holds_exactly_its_package(wheels: dict[str, Path], n: int) -> None:
    module = f"red_expert_range{n}"
    files = ("__init__.py", "canary.safetensors", "card.jsonl", "expert.json", "expert.safetensors")
    assert names(wheels[module]) == {f"{module}/{f}" for f in files}


def test_the_backbones_wheel_carries_its_weights(wheels: dict[str, Path]) -> None:
    folder = "plugins/red-backbone-tiny/src/"
    expected = {n.removeprefix(folder) for n in tracked(folder)}
    assert names(wheels["red_backbone_tiny"]) == expected
    assert "red_backbone_tiny/model.safetensors" in expected


def test_a_backbone_of_another_packages_files_has_none_of_them(wheels: dict[str, Path]) -> None:
    files = ("__init__.py", "backbone.json", "background.jsonl")
    assert names(wheels["red_backbone_minilm"]) == {f"red_backbone_minilm/{f}" for f in files}


@pytest.mark.parametrize(
    "name",
    [
        "red-lab",
        "redhost-author",
        "redhost-doctor",
        "redhost-fleet",
        "redhost-author",
        "redhost-gateway",
        "redhost-generate",
        "redhost-index",
        "redhost-mechanisms",
        "redhost-merge",
        "redhost-mlflow",
        "redhost-onnx",
        "redhost-peft",
        "redhost-port",
        "redhost-ray",
        "redhost-report",
        "redhost-revoke",
        "redhost-robust",
        "redhost-serve",
        "redhost-spans",
        "redhost-sync",
        "redhost-words",
    ],
)
def test_a_code_plugins_wheel_holds_exactly_its_package(wheels: dict[str, Path], name: str) -> None:
    folder = f"plugins/{name}/src/"
    expected = {n.removeprefix(folder) for n in tracked(folder)}
    assert names(wheels[name.replace("-", "_")]) == expected


SESSION = """
import contextlib, io, json
from redhost.cli import main

def run(command):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(command)
        except SystemExit as e:
            return int(e.code or 0), out.getvalue(), err.getvalue()

print(json.dumps([run(command) for command in json.loads(sys.argv[1])]))
"""

TRUST = """
import sys
sys.path[:] = [*sys.argv[1:3], *(p for p in sys.path if not p.endswith("-packages"))]
from redhost.registry.environment import trust
assert trust.__file__.startswith(sys.argv[1]) and trust.source_tree() is None
agreement = trust.agreed(trust.find("redhost-ray"))
print(agreement and agreement.reason)
"""


def test_plugins_of_the_same_release_are_trusted_until_a_file_changes(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """After plain pip install, beside all that is installed here but redhost and its plugins."""
    ours, others = tmp_path / "site", tmp_path / "others"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    released = [wheels["redhost"], wheels["redhost_ray"]]
    subprocess.run([*pip, "--target", ours, *released], check=True, capture_output=True)
    others.mkdir()
    for place in Path(sysconfig.get_path("purelib")).iterdir():
        if "redhost" not in place.name:
            (others / place.name).symlink_to(place)

    def reason() -> str:
        command = [sys.executable, "-c", TRUST, ours, others]
        env = {**os.environ, "REDHOST_CONFIG": str(tmp_path / "config")}
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=env, cwd=tmp_path
        ).stdout.strip()

    assert reason() == "this redhost was released with it"
    file = ours / "redhost_ray/pool.py"
    file.write_bytes(file.read_bytes() + b"\n")
    assert reason() == "None"


def test_wheels_do_the_main_job_without_the_checkout(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--target",
            str(site),
            *(str(path) for name, path in wheels.items() if name != "red_backbone_minilm"),
        ],
        check=True,
        capture_output=True,
    )
    # Third-party packages come from this environment, our own must come from the wheels.
    code = (
        f"import sys; root, site = {str(ROOT)!r}, {str(site)!r}\n"
        "others = [p for p in sys.path if root not in p or 'site-packages' in p]\n"
        "sys.path[:] = [site, *others]\n"
        "import redhost; assert redhost.__file__.startswith(site), redhost.__file__\n"
        f"{SESSION}"
    )

    def run(*commands: tuple[str, ...]) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(commands)],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "REDHOST_HOME": str(tmp_path / "h")},
        )
        assert done.returncode == 0, done.stderr
        ended = json.loads(done.stdout)
        assert [code for code, _, _ in ended] == [0] * len(commands), ended
        return [json.loads(out) for _, out, _ in ended]

    listed, composed = run(("list-experts", "--json"), ("recompose", "--json"))
    assert [x["state"] for x in listed] == ["enabled"] * 5
    assert composed["accuracy"]["overall"] >= 0.95
    predict = ("predict", "--json", "What is 37 plus 12?")
    predicted, checked = run(predict, ("check", "--json", str(wheels["red_expert_range3"])))
    assert predicted[0]["label"] == "49"
    assert checked[0]["ok"]
