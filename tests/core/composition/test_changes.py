"""attach, detach, replace: exactly one expert changes, and nothing is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redhost_author
from redhost_author.signing import make_signer, new_key
from redhost_author.wheels import build_wheel
from warm_start import warm_command

import redhost
from redhost.core.types import CardRow
from redhost.registry.errors import (
    CompositionError,
    ContractError,
    HarmError,
    IntegrityError,
    MissingError,
    SettingsError,
    UnknownNameError,
    UsageError,
)
from redhost.registry.home.generations import Generations
from redhost.registry.queries.settings import set_disabled
from redhost.registry.wheel.signing import read_keys
from redhost.registry.wheel.wheel import open_wheel

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]


@pytest.fixture(scope="module")
def pair_home(tmp_path_factory) -> Path:
    """Where green and red are composed once, by the first test that has them installed."""
    return tmp_path_factory.mktemp("pair") / "home"


@pytest.fixture
def pair(environment, backbone_folder, expert_folders, home, pair_home) -> redhost.Host:
    """A host that has composed green and red; blue is not installed."""
    environment.install(backbone_folder.parents[1])
    for name in ("green", "red"):
        environment.install(expert_folders[name].parents[1], code="raise SystemExit('imported')\n")
    if not pair_home.exists():
        redhost.Host.open(pair_home, backbone="toy").recompose()
    shutil.copytree(pair_home, home)
    return redhost.Host.open(home, backbone="toy")


def members(host: redhost.Host) -> dict[str, str]:
    return host.generations.load(host.generations.current()).members()


def test_a_wheel_joins_without_being_installed(pair, environment, expert_folders, tmp_path) -> None:
    before, files = members(pair), sorted(environment.folder.rglob("*"))
    wheel = build_wheel(expert_folders["blue"].parents[1], tmp_path)
    receipt = pair.attach(wheel)
    assert (receipt.generation, receipt.parent, receipt.withdrawn) == (2, 1, ())
    assert set(receipt.experts) == {"blue", "green", "red"}
    assert members(pair).items() >= before.items()
    assert pair.predict(["blue 63 f"])[0].label == "f"
    assert sorted(environment.folder.rglob("*")) == files
    record = pair.generations.load(2)
    assert {m.id: bool(m.wheel) for m in record.experts} == {
        "blue": True,
        "green": False,
        "red": False,
    }


def test_a_wheel_joins_only_signed_where_the_project_names_keys(
    pair, expert_folders, tmp_path, monkeypatch
) -> None:
    wheel = build_wheel(expert_folders["blue"].parents[1], tmp_path)
    public = new_key(tmp_path / "author.pem")
    (tmp_path / "pyproject.toml").write_text(f'[tool.redhost]\nkeys = ["{public.name}"]\n')
    monkeypatch.chdir(tmp_path)
    host, [key] = redhost.Host.open(pair.home, backbone="toy"), read_keys([public])
    for unsigned in (wheel, open_wheel(wheel)):
        with pytest.raises(IntegrityError):
            host.attach(unsigned)
    assert host.generations.current() == 1
    make_signer(tmp_path / "author.pem")(wheel)
    host.attach(wheel)
    record = host.generations.load(2)
    assert {m.id: m.signer for m in record.experts if m.signer} == {"blue": key.fingerprint}
    host.detach("red")  # the others come from the store, and keep what is known of them
    assert {m.id: m.signer for m in host.generations.load(3).experts if m.signer} == {
        "blue": key.fingerprint
    }


def test_control_without_keys_lets_an_unsigned_wheel_join(pair, expert_folders, tmp_path) -> None:
    pair.attach(build_wheel(expert_folders["blue"].parents[1], tmp_path))
    assert "blue" in members(pair)  # what we guard against


def test_a_folder_joins_and_a_plain_recompose_composes_what_is_installed(
    pair, expert_folders
) -> None:
    alone = pair.predict(TEXTS)
    pair.attach(expert_folders["blue"])
    answers = redhost.Host.open(pair.home, backbone="toy").predict(TEXTS)
    assert answers[2].label == "f"  # from the store, in a host that never saw the folder
    receipt = pair.recompose(accept=True)
    assert receipt.withdrawn == ("blue",) and set(receipt.experts) == {"green", "red"}
    assert [a.probability for a in pair.predict(TEXTS)] == [a.probability for a in alone]


def test_a_change_names_members_that_are_composed_though_they_were_uninstalled(
    pair, environment, expert_folders, tmp_path
) -> None:
    environment.uninstall("red-expert-red")
    pair.recompose(accept=True)
    pair.rollback()  # red answers again, from stored bytes
    receipt = pair.attach(build_wheel(expert_folders["blue"].parents[1], tmp_path))
    assert set(receipt.experts) == {"blue", "green", "red"} and receipt.drift == {"red": "missing"}
    environment.install(expert_folders["red"].parents[1])
    assert pair.detach("blue", accept=True).drift == {}
    set_disabled(pair.home, "red")
    receipt = pair.attach(expert_folders["blue"])
    assert receipt.drift == {"red": "disabled"}
    assert pair.recompose(accept=True).drift == {}  # it goes by what is installed


def test_an_installed_id_joins_again_after_it_was_detached(pair) -> None:
    first = pair.generations.load(1).router.digest
    assert pair.detach("red", accept=True).withdrawn == ("red",)
    assert set(members(pair)) == {"green"}
    assert pair.attach("red", accept=True).router.digest == first


def test_the_first_to_join_brings_its_backbone_where_several_are_installed(
    environment, backbone_folder, expert_folders, home, tmp_path
) -> None:
    environment.install(backbone_folder.parents[1])  # beside the one of the real environment
    host = redhost.Host.open(home)
    with pytest.raises(SettingsError, match="Choose one with --backbone"):
        host.recompose()
    host.attach(build_wheel(expert_folders["red"].parents[1], tmp_path), accept=True)
    record = host.generations.load(1)
    assert (record.backbone.id, set(members(host))) == ("toy", {"red"})
    for name in ("toy", "red-backbone-toy", "red_backbone_toy"):
        same = redhost.Host.open(home, backbone=name)
        with pytest.raises(UsageError, match="composed already"):
            same.attach(expert_folders["red"])
    with pytest.raises(UsageError) as e:
        redhost.Host.open(home, backbone="tiny").attach(expert_folders["blue"])
    assert (e.value.expected, e.value.found) == ("toy", "tiny")


def test_what_is_installed_meanwhile_changes_nothing(pair, environment, expert_folders) -> None:
    environment.uninstall("red-expert-green")
    environment.install(expert_folders["blue"].parents[1])
    assert set(pair.detach("red").experts) == {"green"}  # green from the store, no blue


def test_replace_exchanges_one_for_another(pair, expert_folders, build_expert, tmp_path) -> None:
    before = members(pair)
    settings = redhost_author.ExpertSettings(rank=8, epochs=80, learning_rate=1e-2, seed=1)
    newer = build_expert(tmp_path / "new", "red", settings=settings)
    receipt = pair.replace("red", newer)
    assert set(receipt.experts) == {"green", "red"} and receipt.withdrawn == ()
    assert members(pair)["red"] != before["red"] and members(pair)["green"] == before["green"]
    assert set(pair.replace("red", expert_folders["blue"]).experts) == {"blue", "green"}


def test_the_router_stays_of_its_kind_unless_set_otherwise(pair, expert_folders) -> None:
    pair.recompose(router="centroid", seed=7, accept=True)
    assert pair.attach(expert_folders["blue"], accept=True).router.kind == "centroid"
    assert pair.generations.load(3).router.seed == 7
    assert pair.detach("blue", router="evidence", accept=True).router.kind == "evidence"


def test_before_the_first_generation_it_starts_from_what_is_installed(
    pair, expert_folders, tmp_path
) -> None:
    fresh = redhost.Host.open(tmp_path / "fresh", backbone="toy")
    with pytest.raises(MissingError, match="nothing is composed"):
        fresh.detach("red")
    assert set(fresh.attach(expert_folders["blue"]).experts) == {"blue", "green", "red"}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda h, _: h.attach("red"), UsageError, "'red' is composed already"),
        (lambda h, _: h.attach("rde"), UnknownNameError, "Did you mean 'red'"),
        (lambda h, _: h.detach("blue"), UnknownNameError, "unknown composed expert 'blue'"),
        (lambda h, _: h.replace("blue", "red"), UnknownNameError, "composed expert 'blue'"),
        (lambda h, f: h.replace("green", f["red"]), UsageError, "'red' is composed already"),
        (lambda h, f: h.attach(f["red"].parents[2]), ContractError, "was not attached"),
    ],
)
def test_what_makes_no_sense_changes_nothing(pair, expert_folders, change, error, words) -> None:
    with pytest.raises(error, match=words) as e:
        change(pair, expert_folders)
    assert "\n" not in str(e.value)
    assert pair.generations.numbers() == (1,)


def test_a_disabled_expert_does_not_join_by_any_way(pair, expert_folders) -> None:
    pair.detach("red", accept=True)
    set_disabled(pair.home, "red")
    for source in ("red", expert_folders["red"]):
        with pytest.raises(ContractError, match=r"disabled by you\. Enable it"):
            pair.attach(source)


def test_the_last_one_cannot_leave(pair) -> None:
    pair.detach("red", accept=True)
    with pytest.raises(CompositionError, match="'green' is the only one composed") as e:
        pair.detach("green")
    assert "'redhost add WHEEL'" in e.value.hint


def test_a_broken_newcomer_is_refused_by_name(pair, expert_folders, tmp_path) -> None:
    import shutil

    folder = Path(shutil.copytree(expert_folders["blue"], tmp_path / "blue"))
    (folder / "expert.safetensors").write_bytes(b"{")
    with pytest.raises(redhost.errors.IntegrityError, match="was not attached"):
        pair.attach(folder)
    assert set(members(pair)) == {"green", "red"}


def test_harm_to_another_domain_is_refused_unless_accepted(pair, build_expert, tmp_path) -> None:
    """A newcomer that knows red as green, and takes all routes by its card."""
    greedy = build_expert(
        tmp_path / "greedy",
        "green",
        expert_id="greedy",
        gate=[CardRow(text=f"red {n} a", label="c", part="gate") for n in range(50, 60)]
        + [CardRow(text=f"red {n} a", label="c", part="fit") for n in range(100)],
    )
    with pytest.raises(HarmError, match="rows of domain 'red' under other labels"):
        pair.attach(greedy)
    kinds = "ridge, statistics, centroid, evidence, quadratic"
    with pytest.raises(HarmError, match=f"Tried --router {kinds}: none lets it in"):
        pair.attach(greedy, try_others=True)
    assert pair.generations.current() == 1
    assert "greedy" in pair.attach(greedy, accept=True).experts


def test_routers_that_would_let_a_newcomer_in_are_named(pair, expert_folders) -> None:
    """Under weights that ignore the text, a newcomer takes a share of every expert's."""
    with pytest.raises(HarmError) as plain:
        pair.attach(expert_folders["blue"], router="blend")
    with pytest.raises(HarmError, match=r"Tried: --router .*would let it in") as tried:
        pair.attach(expert_folders["blue"], router="blend", try_others=True)
    assert tried.value.found == plain.value.found
    assert "'redhost add WHEEL --try' says which" in plain.value.hint
    named = re.findall(r"(\w+) \(", tried.value.hint)
    assert "evidence" in named and pair.generations.current() == 1
    assert "blue" in pair.attach(expert_folders["blue"], router=named[0]).experts


def test_many_threads_lose_no_change(pair, expert_folders, build_expert, tmp_path) -> None:
    folders = [build_expert(tmp_path / f"b{n}", "blue", expert_id=f"blue{n}") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(pair.attach, folders))
    assert sorted(r.generation for r in receipts) == [2, 3, 4, 5]
    assert set(members(pair)) == {"green", "red", *(f"blue{n}" for n in range(4))}
    assert [c.parent for c in pair.generations.history()] == [None, 1, 2, 3, 4]


def test_two_processes_lose_no_change(pair, build_expert, environment, tmp_path) -> None:
    folders = [build_expert(tmp_path / f"b{n}", "blue", expert_id=f"blue{n}") for n in range(2)]
    code = (
        f"import sys; sys.path.insert(0, {str(environment.folder)!r}); import redhost\n"
        "redhost.Host.open(sys.argv[1], backbone='toy').attach(sys.argv[2], accept=True)"
    )
    command = warm_command("-c", code, str(pair.home))
    running = [subprocess.Popen([*command, str(f)], stderr=subprocess.PIPE) for f in folders]
    for process in running:
        _, err = process.communicate()
        assert process.returncode == 0, err.decode()
    assert set(members(pair)) == {"green", "red", "blue0", "blue1"}


def test_control_that_reads_before_it_holds_the_lock_loses_a_change(
    pair, expert_folders, build_expert, tmp_path, monkeypatch
) -> None:
    """What two writers do without one guard around read, compose and publish."""
    from redhost.core.composition import changes

    stale = Generations(pair.home).load(1)
    pair.attach(expert_folders["blue"])
    plain = changes.select_stored
    monkeypatch.setattr(changes, "select_stored", lambda _, store: plain(stale, store))
    pair.attach(build_expert(tmp_path / "late", "blue", expert_id="late"), accept=True)
    assert "blue" not in members(pair)  # wrong: what we guard against
