"""The certify kit: it passes what is sound and names what is not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from redhost_author.testing import assert_expert_contract

import redhost
from redhost.core.composition.recompose import compose
from redhost.testing import assert_bus_laws, assert_same_answers


@pytest.fixture
def composed(backbone_folder, expert_folders):
    return compose(backbone_folder, list(expert_folders.values())).composed


def test_the_laws_hold_for_a_real_composition(composed) -> None:
    assert_bus_laws(composed.bus, composed.backbone.encode(["red 1", "green 2", "else"]))


def test_the_laws_notice_a_bus_that_breaks_them(composed, monkeypatch) -> None:
    bus = composed.bus
    plain = bus.ensemble.residual
    monkeypatch.setattr(bus.ensemble, "residual", lambda *a, **k: plain(*a, **k) + 1e-3)
    with pytest.raises(AssertionError, match="α = 0 is the backbone, bit for bit"):
        assert_bus_laws(bus, torch.randn(3, 16))


def test_same_answers_differ_from_others(composed, backbone_folder, expert_folders) -> None:
    again = compose(backbone_folder, list(expert_folders.values())[::-1]).composed
    assert_same_answers(composed, again, ["red 1", "blue 2"])
    fewer = compose(backbone_folder, [expert_folders["red"]]).composed
    with pytest.raises(AssertionError, match="other probabilities for 'blue 2'"):
        assert_same_answers(composed, fewer, ["blue 2"])


def test_the_kit_imports_no_torch_until_it_is_used() -> None:
    code = "import sys, redhost.testing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_fixtures_install_experts_that_a_host_composes(
    redhost_environment, redhost_fake_expert, tmp_path
) -> None:
    for expert_id in ("apples", "pears"):
        redhost_fake_expert(expert_id)
        assert_expert_contract(redhost_environment.package(f"red-expert-{expert_id}"))
    host = redhost.Host.open(tmp_path / "home", backbone="tiny-random")
    assert {"apples", "pears"} <= set(host.recompose().experts)
    [answer] = host.predict(["pears 3"])
    assert answer.label in {"a", "b", "none"}
    redhost_environment.uninstall("red-expert-pears")
    assert host.recompose(accept=True).withdrawn == ("pears",)


def test_pytest_finds_the_fixtures_where_redhost_is_installed(tmp_path) -> None:
    test = tmp_path / "test_mine.py"
    test.write_text(
        "import sys\n"
        "def test_it(redhost_environment):\n"
        "    assert redhost_environment.folder.is_dir() and 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
