"""The host, with packages that come and go in a real environment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import redhost
from redhost.registry.errors import (
    CompositionError,
    HarmError,
    MissingError,
    SettingsError,
    UsageError,
)
from redhost.registry.lock import LOCK

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]
IDS = ("blue", "green", "red")


@pytest.fixture
def installed(environment, backbone_folder, expert_folders):
    """The toy backbone and three experts, installed."""
    environment.install(backbone_folder.parents[1])
    for folder in expert_folders.values():
        environment.install(folder.parents[1], code="raise AssertionError('imported')\n")
    return environment


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="toy")


def answers(home: Path) -> list[tuple[str, float]]:
    return [(a.label, a.probability) for a in open_host(home).predict(TEXTS)]


def ours(receipt: redhost.Receipt) -> set[str]:
    """What was left out, the packages of the real environment excepted."""
    return {x.id for x in receipt.left_out if x.code != "backbone_mismatch"}


def test_recompose_publishes_and_predict_answers(installed, home) -> None:
    with open_host(home) as host:
        receipt = host.recompose()
        found = host.predict(TEXTS)
    assert (receipt.generation, receipt.parent, ours(receipt)) == (1, None, set())
    assert tuple(receipt.experts) == IDS
    assert [a.label for a in found[:3]] == ["b", "c", "f"]
    assert found[0].generation == 1
    assert set(found[0].weights) == {*IDS, "backbone"}
    assert sum(found[0].weights.values()) == pytest.approx(1)


def test_recompose_changes_no_byte_of_backbone_or_experts(installed, home) -> None:
    files = [p for p in installed.folder.rglob("*") if p.is_file()]
    before = {p: p.read_bytes() for p in files}
    receipt = open_host(home).recompose()
    assert {p: p.read_bytes() for p in files} == before
    assert receipt.backbone.before == receipt.backbone.after
    assert all(c.before == c.after for c in receipt.experts.values())


def test_before_anything_is_composed_predict_says_what_to_do(home) -> None:
    with pytest.raises(MissingError, match="Run 'redhost recompose'") as e:
        open_host(home).predict(TEXTS)
    assert e.value.exit_code == 3


@pytest.mark.parametrize("router", ["evidence", "statistics", "linear", "mlp", "centroid"])
def test_uninstall_and_reinstall_give_the_same_router_bit_for_bit(
    installed, home, router, expert_folders
) -> None:
    host = open_host(home)
    first = host.recompose(router=router)
    installed.uninstall("red-expert-red")
    without = host.recompose(router=router, accept=True)
    assert without.withdrawn == ("red",)
    assert without.router.digest != first.router.digest
    installed.install(expert_folders["red"].parents[1])
    again = host.recompose(router=router, accept=True)
    assert again.router.digest == first.router.digest
    assert again.parent == 2


def test_order_of_installation_never_matters(
    environment, home, tmp_path, backbone_folder, expert_folders
) -> None:
    environment.install(backbone_folder.parents[1])
    digests = set()
    for n, order in enumerate((IDS, IDS[::-1])):
        for name in order:
            environment.install(expert_folders[name].parents[1])
        digests.add(open_host(tmp_path / f"home{n}").recompose(router="mlp").router.digest)
        for name in order:
            environment.uninstall(f"red-expert-{name}")
    assert len(digests) == 1


def test_caches_cold_or_warm_give_the_same_router(installed, tmp_path) -> None:
    cold = open_host(tmp_path / "one").recompose(router="linear")
    warm = open_host(tmp_path / "one").recompose(router="linear")
    other = open_host(tmp_path / "two").recompose(router="linear")
    assert cold.router.digest == warm.router.digest == other.router.digest


def test_rollback_answers_from_the_store_bit_for_bit(installed, home) -> None:
    host = open_host(home)
    host.recompose()
    before = answers(home)
    installed.uninstall("red-expert-red")
    host.recompose()
    assert answers(home) != before
    assert host.rollback() == 1
    assert answers(home) == before


def test_the_store_answers_even_when_everything_is_uninstalled(installed, home) -> None:
    open_host(home).recompose()
    before = answers(home)
    for name in (*IDS,):
        installed.uninstall(f"red-expert-{name}")
    installed.uninstall("red-backbone-toy")
    assert [(a.label, a.probability) for a in redhost.Host.open(home).predict(TEXTS)] == before


def rewrite(folder: Path, **changes: object) -> None:
    """Change an installed expert's manifest, by dotted path."""
    path = folder / "expert.json"
    manifest = json.loads(path.read_text())
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        place = manifest
        for parent in parents:
            place = place[parent]
        place[last] = value
    path.write_text(json.dumps(manifest))


def resign(folder: Path, name: str, part: str) -> None:
    """Make the manifest agree with a changed file, as a careless author would."""
    import hashlib

    rewrite(folder, **{f"{part}__sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()})


def with_nan(folder: Path) -> None:
    path = folder / "expert.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["U"][0, 0] = np.nan
    safetensors.numpy.save_file(tensors, path)
    resign(folder, path.name, "weights")


def truncated(folder: Path) -> None:
    path = folder / "expert.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def wrong_canary(folder: Path) -> None:
    path = folder / "canary.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["delta"] += 0.5
    safetensors.numpy.save_file(tensors, path)
    resign(folder, path.name, "canary")


BREAKS = {
    "backbone_mismatch": lambda f: rewrite(f, backbone__fingerprint="0" * 64),
    "width_mismatch": lambda f: rewrite(f, reads__width=99),
    "weights_tensors": lambda f: rewrite(f, rank=3),
    "weights_not_finite": with_nan,
    "weights_header": truncated,
    "manifest_unknown_key": lambda f: rewrite(f, colour="red"),
    "bus_api": lambda f: rewrite(f, bus_api=">=2"),
    "canary_values": wrong_canary,
    "manifest_json": lambda f: (f / "expert.json").write_text("{not json"),
}
HIDE = {"width_mismatch": {"weights_tensors", "width_mismatch"}}
"""A wrong width also disagrees with the tensors, which is seen first."""


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_member_is_refused_and_the_old_composition_answers(installed, home, code) -> None:
    host = open_host(home)
    host.recompose()
    before = answers(home)
    BREAKS[code](installed.package("red-expert-red"))
    with pytest.raises(HarmError, match="expert 'red' is in the current composition") as e:
        host.recompose()
    assert "\n" not in str(e.value)
    assert e.value.exit_code == 1
    assert host.generations.current() == 1
    assert answers(home) == before


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_newcomer_is_left_out_with_its_reason(installed, home, code) -> None:
    BREAKS[code](installed.package("red-expert-red"))
    receipt = open_host(home).recompose()
    assert set(receipt.experts) == {"blue", "green"}
    codes = {x.code for x in receipt.left_out if "red" in x.id and "range" not in x.id}
    assert codes <= HIDE.get(code, {code}) and codes


def test_two_packages_with_one_id_are_an_error_that_names_both(
    installed, home, tmp_path, expert_folders
) -> None:
    project = tmp_path / "other"
    shutil.copytree(expert_folders["red"].parents[1], project)
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(
        text.replace("red-expert-red", "other-red").replace('"red_expert_red"', '"other_red"')
    )
    (project / "src" / "red_expert_red").rename(project / "src" / "other_red")
    host = open_host(home)
    host.recompose()
    installed.install(project)
    with pytest.raises(HarmError, match=r"other-red 0\.1\.0 and red-expert-red 0\.1\.0"):
        host.recompose()


def test_a_disabled_expert_is_withdrawn_and_stays_visible(installed, home) -> None:
    from redhost.registry.disabled import Disabled

    host = open_host(home)
    host.recompose()
    Disabled(home).disable("red")
    receipt = host.recompose()
    assert receipt.withdrawn == ("red",)
    assert {x.id: x.code for x in host.list_experts()}["red"] == "disabled"


def test_a_broken_member_can_be_disabled_by_its_distribution(installed, home) -> None:
    from redhost.registry.disabled import Disabled

    host = open_host(home)
    host.recompose()
    BREAKS["manifest_json"](installed.package("red-expert-red"))
    Disabled(home).disable("red-expert-red")
    assert host.recompose().withdrawn == ("red",)


def test_dry_run_writes_nothing(installed, home) -> None:
    receipt = open_host(home).recompose(dry_run=True)
    assert receipt.generation is None
    assert not (home / "generations").exists() and not (home / "current").exists()


def test_levels_zero_row_and_full(installed, home) -> None:
    host = open_host(home)
    full = host.recompose(router="statistics")
    zero = host.recompose(router="statistics", level="zero")
    assert zero.router.digest == full.router.digest
    installed.uninstall("red-expert-red")
    host.recompose(router="linear")
    with pytest.raises(UsageError, match="closed form"):
        host.recompose(router="linear", level="zero")


def test_row_level_moves_only_the_new_column(installed, home, expert_folders) -> None:
    installed.uninstall("red-expert-red")
    host = open_host(home)
    host.recompose(router="linear")
    parent = host.load(1).bus.router.state_dict()["weight"]
    installed.install(expert_folders["red"].parents[1])
    receipt = host.recompose(router="linear", level="row", accept=True)
    child = host.load(2).bus.router.state_dict()["weight"]
    assert receipt.router.moved == ("red",)
    assert receipt.router.columns == ("blue", "green", "red", "backbone")
    assert (child[[0, 1, 3]] == parent).all() and (child[2] != 0).any()


def test_row_level_needs_a_parent(installed, home) -> None:
    with pytest.raises(UsageError, match="--level full") as e:
        open_host(home).recompose(router="linear", level="row")
    assert e.value.exit_code == 2


def test_locked_reuses_the_router_and_refuses_drift(installed, home) -> None:
    host = open_host(home)
    first = host.recompose(router="mlp")
    locked = open_host(home).recompose(locked=True)
    assert locked.router.digest == first.router.digest
    assert locked.router.moved == ()
    installed.uninstall("red-expert-red")
    with pytest.raises(CompositionError, match="red is missing") as e:
        open_host(home).recompose(locked=True)
    assert e.value.exit_code == 1


def test_locked_without_the_routers_weights_is_exit_3(installed, home, tmp_path) -> None:
    open_host(home).recompose()
    other = tmp_path / "clone"
    other.mkdir()
    shutil.copy(home / LOCK, other / LOCK)
    with pytest.raises(MissingError, match="no generation in") as e:
        open_host(other).recompose(locked=True)
    assert e.value.exit_code == 3


def test_several_backbones_and_none_chosen_is_exit_3(installed, home) -> None:
    with pytest.raises(SettingsError, match="toy") as e:
        redhost.Host.open(home).recompose()
    assert e.value.exit_code == 3


def test_a_domain_that_falls_is_refused_unless_accepted(
    installed, home, build_expert, tmp_path, backbone
) -> None:
    host = open_host(home)
    host.recompose()
    installed.uninstall("red-expert-red")
    useless = redhost.ExpertSettings(rank=8, epochs=0)
    installed.install(build_expert(tmp_path / "useless", "red", settings=useless).parents[1])
    with pytest.raises(HarmError, match=r"domain 'red' would fall by .* points"):
        host.recompose()
    assert host.generations.current() == 1
    receipt = host.recompose(accept=True)
    assert receipt.accuracy.before is not None
    assert receipt.accuracy.after["red"] < receipt.accuracy.before["red"]


def test_an_expert_without_gate_rows_is_not_gated(installed, home, build_expert, tmp_path) -> None:
    installed.uninstall("red-expert-red")
    installed.install(build_expert(tmp_path / "ungated", "red", gate=[]).parents[1])
    assert open_host(home).recompose().not_gated == ("red",)


def test_an_expert_that_disturbs_others_more_than_it_says_is_left_out(installed, home) -> None:
    rewrite(installed.package("red-expert-red"), off_domain=1e-6)
    receipt = open_host(home).recompose()
    assert ("red", "off_domain") in {(x.id, x.code) for x in receipt.left_out}


def test_evaluate_sets_everything_simpler_beside_the_router(installed, home) -> None:
    host = open_host(home)
    host.recompose()
    result = host.evaluate(leave_out=True)
    assert result.rows == 18 and set(result.domains) == set(IDS)
    assert {"backbone", "best_single", "uniform", "centroid", "hard"} <= set(result.baselines)
    assert set(result.leave_one_out or {}) == set(IDS)
    assert result.macro == pytest.approx(sum(result.domains.values()) / 3)
    assert result.worst == min(result.domains.values())


def test_results_print_in_a_notebook(installed, home) -> None:
    host = open_host(home)
    receipt = host.recompose()
    for shown in (host, receipt, host.predict(TEXTS)[0], host.evaluate()):
        assert shown._repr_html_().startswith("<")
