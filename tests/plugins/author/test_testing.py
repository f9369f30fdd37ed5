"""The contract that a scaffold's test checks: it passes what is sound and names what is not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from redhost_author.testing import assert_expert_contract, expert_project
from warm_start import warm_command


@pytest.fixture(scope="module")
def project(redhost_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of an expert that keeps its contract."""
    return expert_project(
        tmp_path_factory.mktemp("sound") / "red-expert-red", "red", redhost_backbone
    )


def test_a_sound_expert_passes_from_its_project_and_its_folder(project) -> None:
    assert_expert_contract(project)
    assert_expert_contract(project / "src" / "red_expert_red")


def test_an_installed_expert_passes_by_its_id() -> None:
    assert_expert_contract("range3")


def test_every_broken_promise_is_named(project, tmp_path) -> None:
    folder = tmp_path / "red_expert_red"
    shutil.copytree(project / "src" / "red_expert_red", folder)
    weights = folder / "expert.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(AssertionError, match="breaks its contract:\nweights_header: "):
        assert_expert_contract(folder)


def test_the_test_in_a_scaffold_runs(project) -> None:
    done = subprocess.run(
        warm_command("-m", "pytest", "-q", "-p", "no:cacheprovider", str(project / "tests")),
        check=False,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout
