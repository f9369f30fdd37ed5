"""What of a contract has to be computed: canary, card, and what an expert leaves alone."""

from __future__ import annotations

import hashlib
import json

import pytest
import redhost_author
import safetensors.torch
from redhost_author.verifying import Verifier

import redhost
from redhost.registry.package.readers import BackboneFiles, ExpertFiles, read_backbone, read_expert


def bytes_of(folder) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.fixture(scope="module")
def against(backbone_folder) -> BackboneFiles:
    return read_backbone(bytes_of(backbone_folder)).unwrap("it")


def changed(folder, **values) -> ExpertFiles:
    """Return an expert's files with other values in its manifest."""
    files = bytes_of(folder)
    manifest = {**json.loads(files["expert.json"]), **values}
    return read_expert({**files, "expert.json": json.dumps(manifest).encode()}).unwrap("it")


def test_a_sound_expert_has_no_violation(expert_folders, against) -> None:
    for folder in expert_folders.values():
        assert Verifier().expert(changed(folder), backbone=against) == ()


def test_a_form_that_nobody_makes_is_named(expert_folders, against) -> None:
    files = changed(expert_folders["red"], form="elsewhere:form")
    [found] = Verifier(plugins=redhost.plugins.Plugins(())).expert(files, backbone=against)
    assert found.code == "form_unknown" and "elsewhere:form" in found.found and found.hint


def test_a_card_of_other_rows_than_stated_is_found(expert_folders, against) -> None:
    card = json.loads((expert_folders["red"] / "expert.json").read_text())["card"]
    files = changed(expert_folders["red"], card={**card, "fit": 11, "gate": 9})
    [found] = Verifier().expert(files, backbone=against)
    assert (found.code, found.expected, found.found) == ("card_rows", "11", "10")


@pytest.mark.parametrize("stated", [1e-6, 0.0])
def test_an_expert_that_disturbs_more_than_it_says_is_found(
    expert_folders, against, stated
) -> None:
    files = changed(expert_folders["red"], off_domain=stated)
    [found] = Verifier().expert(files, backbone=against)
    assert found.code == "off_domain" and found.field == "off_domain"


def test_without_a_backbone_only_the_canary_is_computed(expert_folders) -> None:
    assert Verifier().expert(changed(expert_folders["red"], off_domain=1e-6), backbone=None) == ()


def test_an_expert_is_held_to_its_canary(build_expert, against, tmp_path) -> None:
    settings = redhost_author.ExpertSettings(rank=8, epochs=20, learning_rate=1e-2)
    folder = build_expert(tmp_path, "red", settings=settings)
    assert Verifier().expert(changed(folder), backbone=against) == ()
    tensors = safetensors.torch.load_file(folder / "canary.safetensors")
    tensors["delta"] = 1.1 * tensors["delta"]
    safetensors.torch.save_file(tensors, folder / "canary.safetensors")
    sha = hashlib.sha256((folder / "canary.safetensors").read_bytes()).hexdigest()
    canary = json.loads((folder / "expert.json").read_bytes())["canary"]
    [found] = Verifier().expert(changed(folder, canary={**canary, "sha256": sha}), backbone=against)
    assert found.code == "canary_values"
