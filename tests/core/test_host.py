"""The host, with packages that come and go in a real environment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redhost_author
import redhost_generate
import torch

import redhost
from redhost.registry.errors import (
    CompositionError,
    FrozenError,
    HarmError,
    InputTypeError,
    MissingError,
    SettingsError,
    UsageError,
)
from redhost.registry.home.composition import LOCK

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]
IDS = ("blue", "green", "red")


@pytest.fixture
def home(encoded_home: Path) -> Path:
    return encoded_home


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="toy")


def answers(home: Path) -> list[tuple[str, float | None]]:
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


def test_one_text_or_any_iterable_of_texts_is_answered(installed, home) -> None:
    host = open_host(home)
    host.recompose()
    live, one = redhost.Live(host.session), host.predict(TEXTS[:1])
    assert host.predict(TEXTS[0]) == live.predict(TEXTS[0]) == one
    many = host.predict(TEXTS)
    for given in (tuple(TEXTS), iter(TEXTS), dict.fromkeys(TEXTS).keys(), np.array(TEXTS)):
        found = host.predict(given)
        assert [(a.input, a.label) for a in found] == [(a.input, a.label) for a in many]
        assert {type(a.input) for a in found} == {str}
    assert host.predict([]) == host.predict(np.array([], dtype=str)) == []
    encode = host.encoder(host.composed)
    assert torch.equal(encode(TEXTS[0]), encode(TEXTS[:1]))
    assert torch.equal(host.composed.backbone.encode(TEXTS[0]), encode(TEXTS[:1]))


@pytest.mark.parametrize(
    "given", [None, 3, b"red 1 a", ["red 1 a", None], {"red 1 a": "a"}, np.array([["red 1 a"]])]
)
def test_what_is_no_texts_is_a_type_error_wherever_texts_go_in(installed, home, given) -> None:
    host = open_host(home)
    host.recompose()
    model, live = host.composed, redhost.Live(host.session)
    intakes = [host.predict, live.predict, host.encoder(model)]
    for take in (*intakes, model.backbone.encode, lambda x: host.evaluate(x or "none")):
        with pytest.raises(TypeError) as e:
            take(given)
        assert isinstance(e.value, InputTypeError) and e.value.found
    with pytest.raises(InputTypeError, match="NoneType"):
        redhost_generate.generate(host.composed, None)


def test_an_answer_says_where_its_text_was_cut(installed, home) -> None:
    host = open_host(home)
    host.recompose()
    longest = host.composed.backbone.trunk.longest
    assert longest is not None
    whole, cut = "a" * longest, "a" * (longest + 1)
    assert [a.cut for a in host.predict([whole, cut, TEXTS[0]])] == [None, longest, None]


def test_recompose_changes_no_byte_of_backbone_or_experts(installed, home) -> None:
    files = [p for p in installed.folder.rglob("*") if p.is_file()]
    before = {p: p.read_bytes() for p in files}
    receipt = open_host(home).recompose()
    assert {p: p.read_bytes() for p in files} == before
    assert receipt.backbone.before == receipt.backbone.after
    assert all(c.before == c.after for c in receipt.experts.values())


@pytest.mark.parametrize("locked", [False, True])
def test_nothing_is_published_and_nothing_lost_where_the_backbone_moved(
    installed, home, monkeypatch, locked
) -> None:
    """The host whose own memory it happened in answers as before as well."""
    from redhost.core.composition import gates as module

    host = open_host(home)
    host.recompose()
    before, found = contents(home), host.predict(TEXTS)
    plain = module.judge_gates

    def naughty(inputs, model, *others, **options):
        with torch.no_grad():
            next(inputs.backbone.trunk.model.parameters()).add_(1.0)
        return plain(inputs, model, *others, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "judge_gates", naughty)
        with pytest.raises(FrozenError, match=r"moved .*: the backbone"):
            host.recompose(locked=locked, accept=True)
    assert contents(home) == before
    assert host.predict(TEXTS) == open_host(home).predict(TEXTS) == found
    assert host.recompose(locked=locked).generation == (2 if locked else 1)


def contents(home: Path) -> dict[Path, bytes]:
    """Return what was published and stored in a home."""
    folders = (home / "generations", home / "store")
    files = [p for f in folders for p in f.rglob("*") if p.is_file()]
    return {p: p.read_bytes() for p in (*files, home / "current", home / LOCK)}


def test_half_a_character_is_refused_in_words(installed, home) -> None:
    host = open_host(home)
    host.recompose()
    for take in (host.predict, host.composed.backbone.encode):
        with pytest.raises(UsageError, match=r"whole characters, found '.*\\ud800'"):
            take(["green 62 c", "red \ud800"])


def test_before_anything_is_composed_predict_says_what_to_do(home) -> None:
    with pytest.raises(MissingError, match="Run 'redhost recompose --home ") as e:
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
    for n, options in enumerate((IDS, IDS[::-1])):
        for name in options:
            environment.install(expert_folders[name].parents[1])
        digests.add(open_host(tmp_path / f"home{n}").recompose(router="mlp").router.digest)
        for name in options:
            environment.uninstall(f"red-expert-{name}")
    assert len(digests) == 1


def test_caches_cold_or_warm_give_the_same_router(installed, tmp_path) -> None:
    cold = open_host(tmp_path / "one").recompose(router="linear")
    warm = open_host(tmp_path / "one").recompose(router="linear")
    other = open_host(tmp_path / "two").recompose(router="linear")
    assert cold.router.digest == warm.router.digest == other.router.digest


def test_a_host_goes_on_with_what_it_composed_with(installed, home) -> None:
    host = open_host(home)
    host.recompose(router="mlp", seed=7)
    router = host.recompose().router
    assert router.kind == "mlp" and router.digest == host.recompose(seed=7).router.digest
    assert open_host(home).recompose(seed=8).router.digest != router.digest


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"routr": "linear"}, "'routr'. Did you mean 'router'"),
        ({"level": "rows"}, "'level': Invalid enum value 'rows'"),
        ({"seed": "a"}, "'seed': Expected `int"),
        ({"decline": "5%"}, "'decline': Expected `float"),
        ({"decline": 5}, "'decline': Expected `float` < 1"),
    ],
)
def test_keywords_are_checked_by_name_and_type(installed, home, keywords, words) -> None:
    host = open_host(home)
    with pytest.raises(UsageError) as e:
        host.recompose(**keywords)
    assert words in f"{e.value}" and host.generations.current() is None


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


def test_a_receipt_says_by_how_much_the_domain_of_a_withdrawn_expert_falls(installed, home) -> None:
    first = open_host(home).recompose()
    assert first.accuracy.withdrawn == {}
    installed.uninstall("red-expert-red")
    receipt = open_host(home).recompose()
    assert receipt.withdrawn == ("red",) and "red" not in receipt.accuracy.after
    domain = receipt.accuracy.withdrawn["red"]
    assert domain.rows == first.accuracy.rows["red"]
    assert domain.before == first.accuracy.after["red"]
    assert domain.after < domain.before  # what only red knew is gone, and nothing refuses it


def test_a_disabled_expert_is_withdrawn_and_stays_visible(installed, home) -> None:
    from redhost.registry.queries.settings import set_disabled

    host = open_host(home)
    host.recompose()
    set_disabled(home, "red")
    receipt = host.recompose()
    assert receipt.withdrawn == ("red",)
    assert {x.id: x.code for x in host.list_experts()}["red"] == "disabled"


def state_of(home: Path) -> dict[str, bytes]:
    """Every file of a home but caches and the lock that writers hold."""
    files = (p for p in home.rglob("*") if p.is_file())
    skipped = ("cache", "writer.lock", "writer.pid")
    return {
        str(p.relative_to(home)): p.read_bytes()
        for p in files
        if p.relative_to(home).parts[0] not in skipped
    }


def test_dry_run_writes_nothing(installed, home) -> None:
    assert open_host(home).recompose(dry_run=True).generation is None
    assert state_of(home) == {}
    open_host(home).recompose()
    before = state_of(home)
    dry = open_host(home).recompose(router="centroid", accept=True, dry_run=True)
    assert (dry.generation, dry.parent) == (None, 1)
    assert state_of(home) == before


Change = Callable[[Path], dict[str, Any]]


def without_lock(home: Path) -> dict[str, Any]:
    (home / LOCK).unlink()
    return {}


def with_a_damaged_router(home: Path) -> dict[str, Any]:
    (home / "generations" / "1" / "router.safetensors").write_bytes(b"")
    return {"accept": True}


CHANGES: dict[str, Change] = {
    "another seed": lambda _: {"seed": 1},
    "another router": lambda _: {"router": "statistics", "accept": True},
    "a share to decline": lambda _: {"decline": 0.05},
    "a prior": lambda _: {"prior": "uniform", "accept": True},
    "as it is locked, by request": lambda _: {"locked": True},
    "a lock that is gone": without_lock,
    "a damaged generation": with_a_damaged_router,
}


def test_a_recompose_that_changes_nothing_keeps_the_generation(installed, home) -> None:
    first = open_host(home).recompose()
    before, composed = state_of(home), list[redhost.Receipt]()
    host = open_host(home)
    host.plugins.notify = lambda _, receipt: composed.append(receipt)  # type: ignore[method-assign]
    again = host.recompose()
    assert (again.generation, again.parent) == (1, None) and composed == []
    assert again.router.digest == first.router.digest
    assert again.accuracy.before == again.accuracy.after == first.accuracy.after
    assert state_of(home) == before


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_in_anything_is_another_generation(installed, home, change) -> None:
    open_host(home).recompose()
    options = CHANGES[change](home)
    receipt = open_host(home).recompose(**options)
    assert (receipt.generation, receipt.parent) == (2, 1)
    options.pop("locked", None)
    assert open_host(home).recompose(**options).generation == 2


def test_an_interrupted_recompose_publishes_nothing(installed, home) -> None:
    open_host(home).recompose()
    before = state_of(home)

    def stop(done: int, total: int) -> None:
        if done == 3:  # texts are encoded in one step: this is the router's third
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_host(home).recompose(router="mlp", accept=True, progress=stop)
    assert state_of(home) == before


def test_two_hosts_that_recompose_at_once_take_turns(installed, home) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(lambda seed=seed: open_host(home).recompose(seed=seed, accept=True))
            for seed in range(2)
        ]
        receipts = sorted((j.result() for j in jobs), key=lambda r: r.generation or 0)
    assert [(r.generation, r.parent) for r in receipts] == [(1, None), (2, 1)]
    assert open_host(home).generations.current() == 2


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


def test_locked_takes_kind_level_and_seed_from_the_lock(installed, home) -> None:
    first = open_host(home).recompose(router="statistics", level="zero", seed=3)
    locked = open_host(home).recompose(locked=True)
    assert (locked.router.kind, locked.router.level, locked.seed) == ("statistics", "zero", 3)
    assert locked.router.digest == first.router.digest


@pytest.mark.parametrize("flag", [{"router": "mlp"}, {"level": "row"}, {"seed": 4}])
def test_a_flag_that_contradicts_the_lock_is_wrong_usage(installed, home, flag) -> None:
    open_host(home).recompose(router="linear", seed=3)
    [name] = flag
    with pytest.raises(UsageError, match=f"--locked uses the {name} of the lock") as e:
        open_host(home).recompose(locked=True, **flag)
    assert e.value.exit_code == 2


def test_locked_without_a_lock_is_exit_3(installed, home) -> None:
    with pytest.raises(MissingError, match="there is no lock to follow"):
        open_host(home).recompose(locked=True)


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
    useless = redhost_author.ExpertSettings(rank=8, epochs=2, learning_rate=1e-3)
    installed.install(build_expert(tmp_path / "useless", "red", settings=useless).parents[1])
    with pytest.raises(HarmError, match=r"domain 'red' would fall by .* points.*--router"):
        host.recompose()
    assert host.generations.current() == 1
    receipt = host.recompose(accept=True)
    assert receipt.accuracy.before is not None
    assert receipt.accuracy.after["red"] < receipt.accuracy.before["red"]


def test_an_expert_without_gate_rows_is_not_gated(installed, home, build_expert, tmp_path) -> None:
    installed.uninstall("red-expert-red")
    installed.install(build_expert(tmp_path / "ungated", "red", gate=[]).parents[1])
    assert open_host(home).recompose().not_gated == ("red",)


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


def test_what_strangers_wrote_is_no_markup_in_a_notebook(installed, home) -> None:
    host = open_host(home)
    host.recompose()
    rows = [redhost.Row(text="red 61 b", label="b", domain="<b>mine</b>")]
    path = installed.package("red-expert-red") / "expert.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "<script>": 1}))
    assert any("<script>" in (x.reason or "") for x in host.list_experts())
    for shown in (host, host.evaluate(rows)):
        assert "<script>" not in shown._repr_html_() and "<b>" not in shown._repr_html_()


def edit_stored_manifest(home: Path) -> None:
    """Change a stored copy so that every hash in it still agrees."""
    digest = open_host(home).generations.load(1).members()["red"]
    path = home / "store" / digest / "expert.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": 3.0}))


def cut_stored_weights(home: Path) -> None:
    digest = open_host(home).generations.load(1).members()["red"]
    path = home / "store" / digest / "expert.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


DAMAGE = {
    "a stored expert is gone": lambda home: shutil.rmtree(
        home / "store" / open_host(home).generations.load(1).members()["red"]
    ),
    "a stored expert is cut short": cut_stored_weights,
    "a stored manifest was edited": edit_stored_manifest,
    "the router is gone": lambda home: (home / "generations/1/router.safetensors").unlink(),
    "the record is damaged": lambda home: (home / "generations/1/composition.json").write_text(""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_home_never_answers_and_is_composed_anew_on_request(
    installed, home, damage
) -> None:
    open_host(home).recompose()
    before = answers(home)
    DAMAGE[damage](home)
    with pytest.raises(redhost.RedhostError) as e:
        answers(home)
    assert "\n" not in str(e.value) and e.value.hint
    if "stored" not in damage:
        with pytest.raises(HarmError, match=r"generation 1 cannot be loaded.* --accept"):
            open_host(home).recompose()
    receipt = open_host(home).recompose(accept=True)
    assert (receipt.parent, receipt.withdrawn) == (1 if receipt.generation == 2 else None, ())
    assert answers(home) == before


@pytest.mark.parametrize("damage", [d for d in DAMAGE if "stored" in d])
def test_a_damaged_copy_is_restored_from_the_installed_package(installed, home, damage) -> None:
    open_host(home).recompose()
    before = answers(home)
    DAMAGE[damage](home)
    receipt = open_host(home).recompose()  # of these very bytes: there is something to compare with
    assert receipt.generation == 1 and receipt.accuracy.before == receipt.accuracy.after
    assert answers(home) == before


def test_each_expert_is_read_and_computed_once_however_often_it_is_compared(
    installed, home, expert_reads
) -> None:
    packages = len(open_host(home).list_experts())
    for router in ("statistics", "centroid"):  # the second beside the generation of the first
        with expert_reads("read_expert", "check_canary") as calls:
            open_host(home).recompose(router=router, accept=True)
        assert calls.count("read_expert") == packages
        assert calls.count("check_canary") == len(IDS)


def test_a_damaged_record_does_not_stop_the_listing(installed, home) -> None:
    open_host(home).recompose()
    assert {x.state for x in open_host(home).list_experts() if x.id in IDS} == {"attached"}
    DAMAGE["the record is damaged"](home)
    assert {x.state for x in open_host(home).list_experts() if x.id in IDS} == {"enabled"}
