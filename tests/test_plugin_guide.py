"""The packages of docs/plugins.md, as they stand there: installed, trusted and composed with."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import logging
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from redhost_author.wheels import build_wheel

import redhost
from redhost.cli import cli
from redhost.core.plugins.hooks import HookSpec
from redhost.core.tasks import HEADS
from redhost.registry.package.forms import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"
FILE = re.compile(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def files() -> Mapping[str, str]:
    """Return every file that the guide writes out, by its path."""
    return dict(FILE.findall(PAGE.read_text("utf-8")))


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A trust of one's own; the tasks that plugins register here are nobody else's."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    before = {**TASKS}, {**HEADS}
    yield
    for table, names in zip((TASKS, HEADS), before, strict=True):
        for name in table.keys() - names:
            del table[name]


def install(environment, files: Mapping[str, str], module: str, group: str) -> str:
    """Install the module of a package of the guide, as pip would, and trust it."""
    dist = module.replace("_", "-")
    entries = {group: f"{module.removeprefix('redhost_')} = {module}"}
    environment.install_code(dist, {"__init__.py": files[f"src/{module}/__init__.py"]}, entries)
    assert CliRunner().invoke(cli, ["trust", dist]).exit_code == 0
    return dist


def opened(tmp_path: Path) -> redhost.Host:
    return redhost.Host.open(tmp_path / "home", backbone="tiny-random")


def test_every_file_of_the_guide_is_used_here(files) -> None:
    used = inspect.getsource(inspect.getmodule(test_every_file_of_the_guide_is_used_here))
    assert [f for f in files if f not in used and Path(f).parent.name not in used] == []
    assert len(files) == 6


def test_the_first_package_works_and_so_does_its_own_test(
    files, redhost_environment, redhost_fake_expert, tmp_path, monkeypatch
) -> None:
    project = tmp_path / "redhost-uniform"
    for name in ("pyproject.toml", "src/redhost_uniform/__init__.py", "tests/test_uniform.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(files[name])
    with zipfile.ZipFile(build_wheel(project, tmp_path / "dist")) as wheel:
        assert "redhost_uniform/__init__.py" in wheel.namelist()
    path = project / "tests" / "test_uniform.py"
    spec = importlib.util.spec_from_file_location("test_uniform", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_every_column_has_the_same_weight(
        redhost_environment, redhost_fake_expert, tmp_path, monkeypatch
    )
    with opened(tmp_path) as host:
        record = host.generations.load(1)
        assert record.router.kind == "uniform" and set(record.providers) == {"redhost-uniform"}
        assert record.members().keys() == {"apples", "pears"}


def test_the_form_is_built_by_its_plugin_alone(
    files, redhost_environment, redhost_fake_expert, tmp_path
) -> None:
    redhost_fake_expert("apples")
    shifted = redhost_environment.package(redhost_fake_expert("shifted"))
    reshape(shifted)
    redhost_environment.seal("red-expert-shifted")
    with opened(tmp_path) as host:
        left_out = {x.id: x.code for x in host.recompose(dry_run=True).left_out}
        assert left_out["shifted"] == "form_unknown"
    install(redhost_environment, files, "redhost_forms", "redhost.plugins")
    with opened(tmp_path) as host:
        assert host.recompose().experts.keys() == {"apples", "shifted"}
        expert = host.composed.bus.parts()[host.composed.bus.ids.index("shifted")]
        assert type(expert).__name__ == "Shift"


def reshape(folder: Path) -> None:
    """Make an expert one of the guide's form, by hand: new weights and canary."""
    manifest = json.loads((folder / "expert.json").read_text())
    labels, width = len(manifest["labels"]), manifest["reads"]["width"]
    delta = np.ones((2, labels), "float32")
    tensors = {
        "expert.safetensors": {"by": delta[:1]},
        "canary.safetensors": {"z": np.ones((2, width), "float32"), "delta": delta},
    }
    for part, (name, content) in zip(("weights", "canary"), tensors.items(), strict=True):
        data = safetensors.numpy.save(content)
        (folder / name).write_bytes(data)
        manifest[part]["sha256"] = hashlib.sha256(data).hexdigest()
    manifest |= {"form": "redhost-forms:shift", "rank": 0}
    (folder / "expert.json").write_text(json.dumps(manifest))


def test_the_herald_is_notified_of_what_is_published_and_of_nothing_else(
    files, redhost_environment, redhost_fake_expert, tmp_path, caplog
) -> None:
    install(redhost_environment, files, "redhost_herald", "redhost.plugins")
    redhost_fake_expert("apples")
    redhost_fake_expert("pears")
    with opened(tmp_path) as host, caplog.at_level(logging.WARNING, "redhost.herald"):
        host.recompose(dry_run=True)
        assert caplog.messages == []
        host.recompose()
        host.detach("pears")
        host.rollback()
    assert caplog.messages == ["generation 1: apples, pears", "generation 2: apples"]


def test_the_command_needs_no_trust(
    files, redhost_environment, redhost_fake_expert, tmp_path
) -> None:
    code = files["src/redhost_members/__init__.py"]
    entries = {"redhost.commands": "members = redhost_members:members"}
    assert entries["redhost.commands"] in re.sub(r'"', "", PAGE.read_text("utf-8"))
    redhost_environment.install_code("redhost-members", {"__init__.py": code}, entries)
    redhost_fake_expert("apples")
    with opened(tmp_path) as host:
        host.recompose()
    done = CliRunner().invoke(cli, ["members", "--home", str(tmp_path / "home")])
    assert (done.exit_code, done.output) == (0, "apples\n")


def test_every_hook_is_in_the_guide_with_its_arguments() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    for name, hook in vars(HookSpec).items():
        if name.startswith("redhost_"):
            arguments = [a for a in inspect.signature(hook).parameters if a != "self"]
            assert f"`{name}({', '.join(arguments)})`" in text
