"""A backbone whose model is another distribution's files: found by name, pinned by content."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.backbone.trial import BackboneTrial
from redhost_author.training.context import open_backbone

from redhost.registry.errors import ContractError, IntegrityError
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_backbone

PACKAGE = Path("src", "red_backbone_mine")


@pytest.fixture(scope="module")
def site(model_folder, tmp_path_factory) -> Iterator[Path]:
    """Return a site folder, on the path, with some-model 1.2, a package that carries a model."""
    folder = tmp_path_factory.mktemp("site")
    fill(folder, model_folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield folder


@pytest.fixture(scope="module")
def trial(site) -> Iterator[BackboneTrial]:
    """Return the other process of all trials here, which sees this path."""
    with BackboneTrial() as started:
        yield started


@pytest.fixture
def changed(site, model_folder) -> Iterator[Path]:
    """Return the same folder to a test that changes it."""
    yield site
    fill(site, model_folder)


def fill(site: Path, model_folder: Path) -> None:
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(model_folder, site / "some_model" / "files")
    describe(site, "1.2")


def describe(site: Path, version: str) -> None:
    """Write the distribution's metadata, in place of those of another version."""
    for old in site.glob("*.dist-info"):
        shutil.rmtree(old)
    info = site / f"some_model-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: some-model\nVersion: {version}\n", "utf-8")
    names = sorted(p.relative_to(site) for p in site.rglob("*") if p.is_file())
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names), "utf-8")


@pytest.fixture(scope="module")
def project(trial, tmp_path_factory) -> Path:
    """Return the project of a backbone that was made of it."""
    folder = tmp_path_factory.mktemp("made") / "mine"
    new_backbone(folder, BackbonePlan(id="mine", source="dist:some-model"), trial=trial)
    return folder


def test_the_files_stay_where_they_are_and_the_backbone_is_that_of_the_folder(
    model_folder, project, trial, tmp_path
) -> None:
    manifest, loaded, _ = open_backbone(project / PACKAGE)
    base = manifest.base
    assert (base.kind, base.id, base.revision) == ("dist", "some-model/some_model/files", "==1.2")
    assert manifest.training.note == "from dist:some-model"
    files = {p.name for p in (project / PACKAGE).iterdir()}
    assert files == {"__init__.py", "backbone.json"} and "model.safetensors" in base.files
    plan = BackbonePlan(id="mine", source=f"hf:{model_folder}")
    new_backbone(tmp_path / "carried", plan, trial=trial)
    carried, other, _ = open_backbone(tmp_path / "carried" / PACKAGE)
    assert carried.base.files == base.files and carried.fingerprint == manifest.fingerprint
    assert torch.equal(loaded.encode(["red 1"]), other.encode(["red 1"]))
    wanted = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    assert wanted["dependencies"] == ["some-model==1.2"]
    assert "requires some-model==1.2" in (project / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_changed_file_is_refused_by_its_path(project, changed, name) -> None:
    path = changed / "some_model" / "files" / name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(IntegrityError, match="expected sha256:") as refused:
        open_backbone(project / PACKAGE)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    [violation] = read_backbone(from_folder(project)).violations
    assert violation.code == "base_digest"


@pytest.mark.parametrize(("version", "found"), [("1.3", "1.3"), (None, "no such package")])
def test_without_the_distribution_a_line_says_what_to_install(
    project, changed, version, found
) -> None:
    if version:
        describe(changed, version)
    else:
        shutil.rmtree(changed)
    with pytest.raises(IntegrityError) as refused:
        open_backbone(project / PACKAGE)
    assert refused.value.expected == "some-model==1.2" and refused.value.found == found
    assert "pip install --no-deps 'some-model==1.2'" in refused.value.hint


def test_stored_bytes_need_no_distribution_and_a_wheels_do(project, changed) -> None:
    read = read_backbone(from_folder(project)).unwrap("mine")
    own = {name: data for name, data in read.files.items() if name not in read.manifest.base.files}
    assert read_backbone(own).unwrap("wheel").digest == read.digest
    shutil.rmtree(changed)
    assert read_backbone(read.files).unwrap("stored").digest == read.digest
    assert [v.code for v in read_backbone(own).violations] == ["base_missing"]


def test_of_several_models_one_is_named(changed, trial, tmp_path) -> None:
    shutil.copytree(changed / "some_model" / "files", changed / "some_model" / "other")
    describe(changed, "1.2")
    with pytest.raises(ContractError, match=r"some_model/files.*some_model/other"):
        new_backbone(tmp_path / "two", BackbonePlan(id="two", source="dist:some-model"))
    source = "dist:Some.Model/some_model/other"
    manifest = new_backbone(tmp_path / "two", BackbonePlan(id="two", source=source), trial=trial)
    assert manifest.base.id == "some-model/some_model/other"


@pytest.mark.parametrize("source", ["dist:", "dist:no-such-model", "dist:/etc"])
def test_a_distribution_that_is_not_there_is_named(tmp_path, source) -> None:
    with pytest.raises(ContractError, match="no such package"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=source))
    assert not (tmp_path / "new").exists()


def test_a_package_without_a_model_is_refused(tmp_path) -> None:
    with pytest.raises(ContractError, match=r"model\.safetensors.*found none"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source="dist:click"))
