"""A backbone whose base is another distribution's files: the doctor looks where the reader does."""

from __future__ import annotations

import json
import os
import shutil
import zipfile

import pytest

from redhost.testing import Environment

MODULE, BASE = "red_backbone_tiny_random", "base_model/files"


@pytest.fixture
def site_of_base(world, stub_wheel):
    """Move the base's files into base-model 1.2, a distribution, and compose with them there."""
    own, manifest = world.site / MODULE, world.site / MODULE / "backbone.json"
    fields = json.loads(manifest.read_text())
    names, wheels = sorted(fields["base"]["files"]), world.folder / "wheels"
    wheels.mkdir()
    wheel = stub_wheel(wheels, "base_model", "1.2", {})
    with zipfile.ZipFile(wheel, "a") as archive:
        for name in names:
            archive.write(own / name, f"{BASE}/{name}")
            (own / name).unlink()
    base = {"kind": "dist", "id": f"base-model/{BASE}", "revision": "==1.2"}
    fields["base"] = {**base, "files": fields["base"]["files"]}
    manifest.write_text(json.dumps(fields))
    Environment(world.site).seal("red-backbone-tiny-random")
    install = f"PIP_NO_INDEX=1 PIP_FIND_LINKS={wheels} {world.bin}/python -m pip -q install"
    world.run(f"{install} --no-deps base-model==1.2")
    shutil.rmtree(world.home)
    world.run("redhost recompose --backbone tiny-random")
    return world.site / BASE


@pytest.fixture
def offline(world):
    """Settings with which pip finds the wheel of the base, and no index."""
    wheels = str(world.folder / "wheels")
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels, "PIP_CONFIG_FILE": os.devnull}


def test_files_of_another_distribution_are_there_missing_or_changed(
    world, site_of_base, offline, flip_byte
) -> None:
    assert [f["state"] for f in world.doctor("backbone")] == ["ok"]
    assert [f["state"] for f in world.doctor("backbone --deep")] == ["ok"]
    (site_of_base / "config.json").unlink()
    fault = world.mended("backbone", env=offline)
    assert str(site_of_base / "config.json") in fault["text"]
    flip_byte(site_of_base / "model.safetensors")
    assert [f["state"] for f in world.doctor("backbone")] == ["ok"]
    assert "--force-reinstall" in world.mended("backbone --deep", env=offline)["mend"]
    world.pip("uninstall -y base-model")
    fault = world.mended("backbone", env=offline)
    assert fault["mend"].endswith("pip install --no-deps base-model==1.2")


def test_what_is_copied_from_the_store_is_what_record_lists(world, site_of_base, flip_byte) -> None:
    folder = world.site / MODULE
    before = sorted(p.name for p in folder.iterdir() if p.is_file())
    direct = next(world.site.glob(f"{MODULE}-*.dist-info/direct_url.json"))
    direct.write_text(direct.read_text().replace(str(world.wheels), str(world.folder / "gone")))
    flip_byte(folder / "background.jsonl")
    fault = world.mended("backbone --deep")
    assert fault["mend"].startswith("cp ") and fault["mend"].count("background.jsonl") == 1
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == before
    assert [f["state"] for f in world.doctor("backbone experts --deep")] == ["ok", "ok"]
