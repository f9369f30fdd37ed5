"""A live host: it answers while generations change, and nothing that fails can stop it (S1–S6)."""

from __future__ import annotations

import gc
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch

import redhost
from redhost.core.loader import Loader
from redhost.registry.composition import RECORD, seal
from redhost.registry.manifest import dumps
from redhost.testing import assert_same_answers, backbone_project, expert_project

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]


@pytest.fixture
def home(installed, tmp_path: Path) -> Path:
    """Generation 1 with three experts, generation 2 without red, and 2 is current."""
    home = tmp_path / "home"
    host = open_host(home)
    host.recompose(router="evidence")
    installed.uninstall("red-expert-red")
    host.recompose(router="evidence")
    return home


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="toy")


def open_live(home: Path, kind: type[redhost.Live] = redhost.Live) -> redhost.Live:
    return kind.open(home, backbone="toy")


def said(answers: list[redhost.Answer]) -> list[tuple[object, ...]]:
    return [(a.label, a.probability, tuple(a.weights.items())) for a in answers]


def test_it_starts_with_the_current_generation_and_names_it(home) -> None:
    live = open_live(home)
    assert live.generation == 2
    assert {a.generation for a in live.predict(TEXTS)} == {2}


def test_with_nothing_composed_it_starts_and_says_what_to_do(tmp_path) -> None:
    live = redhost.Live.open(tmp_path / "empty")
    assert (live.generation, live.refresh(), live.alive()) == (None, None, ())
    with pytest.raises(redhost.MissingError, match="Run 'redhost recompose'"):
        live.predict(TEXTS)
    with pytest.raises(redhost.MissingError):
        live.swap()


@pytest.mark.parametrize("number", [1, 2])
def test_a_swapped_host_answers_bit_for_bit_like_one_just_opened(home, number) -> None:
    live = open_live(home)
    live.swap(3 - number)
    live.swap(number)
    fresh = open_host(home).load(number)
    assert_same_answers(live.composed, fresh, TEXTS)
    assert said(live.predict(TEXTS)) == said(fresh.answer(TEXTS))


def test_after_a_swap_the_home_agrees_so_a_restart_serves_the_same(home) -> None:
    live = open_live(home)
    assert live.swap(1) == 1
    assert open_host(home).generations.current() == 1
    assert said(live.predict(TEXTS)) == said(open_host(home).predict(TEXTS))


def test_rollback_goes_to_the_parent_of_what_is_served(home) -> None:
    live = open_live(home)
    assert live.rollback(expected=2) == 1
    with pytest.raises(redhost.MissingError, match="generation 1 has no parent"):
        live.rollback()


def test_refresh_follows_what_another_process_made_current(home) -> None:
    live = open_live(home)
    open_host(home).rollback(1)
    assert (live.generation, live.refresh(), live.generation) == (2, 1, 1)
    before = live.composed
    assert live.refresh() == 1 and live.composed is before


def test_a_change_from_a_stale_view_is_refused_and_changes_nothing(home) -> None:
    live = open_live(home)
    for change in (lambda: live.swap(1, expected=1), lambda: live.rollback(expected=1)):
        with pytest.raises(redhost.StaleGenerationError, match="found generation 2"):
            change()
    assert live.generation == open_host(home).generations.current() == 2


def test_a_concurrent_swap_is_refused(home, monkeypatch) -> None:
    live = open_live(home)
    inside, go_on = threading.Event(), threading.Event()
    read = Loader.read

    def slow(self: Loader, number: int) -> redhost.Composed:
        inside.set()
        assert go_on.wait(30)
        return read(self, number)

    monkeypatch.setattr(Loader, "read", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(live.swap, 1)
        assert inside.wait(30)
        with pytest.raises(redhost.SwapInProgressError, match="another swap is under way"):
            live.swap(2)
        assert live.predict(TEXTS)[0].generation == 2  # the old one answers meanwhile
        go_on.set()
        assert first.result() == 1


def test_unload_stops_answering_until_the_next_swap(home) -> None:
    live = open_live(home)
    live.unload(expected=2)
    with pytest.raises(redhost.MissingError):
        live.predict(TEXTS)
    assert live.swap() == 2


# -- what cannot be served is refused before the pointer moves ----------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def reseal(home: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change generation 1's router so that every digest still agrees."""
    folder = home / "generations" / "1"
    record = open_host(home).generations.load(1)
    tensors = safetensors.torch.load((folder / "router.safetensors").read_bytes())
    tensors = {n: change(t) if t.is_floating_point() else t for n, t in tensors.items()}
    data = safetensors.torch.save(tensors)
    (folder / "router.safetensors").write_bytes(data)
    files = {"router.safetensors": data, "receipt.json": (folder / "receipt.json").read_bytes()}
    (folder / RECORD).write_bytes(dumps(seal(record, number=1, parent=None, files=files)))


def only_in_1(home: Path) -> Path:
    """Return the stored copy of the expert that only generation 1 needs."""
    return home / "store" / open_host(home).generations.load(1).members()["red"]


BROKEN = {
    "the router's file is damaged": lambda home: flip(home / "generations/1/router.safetensors"),
    "the record is damaged": lambda home: (home / "generations/1" / RECORD).write_text("{"),
    "a stored expert is damaged": lambda home: flip(only_in_1(home) / "expert.safetensors"),
    "a stored expert is gone": lambda home: shutil.rmtree(only_in_1(home)),
    "the router answers NaN": lambda home: reseal(home, lambda t: t * float("nan")),
    "the router has another shape": lambda home: reseal(home, lambda t: t.new_zeros(3, 5, 7)),
    "the generation is gone": lambda home: shutil.rmtree(home / "generations/1"),
    "the home cannot be written": lambda home: (home / "lock-is-stale").mkdir(),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_cannot_be_served_leaves_the_old_one_answering(home, broken) -> None:
    live = open_live(home)
    before = said(live.predict(TEXTS))
    BROKEN[broken](home)
    with pytest.raises(redhost.RedhostError) as e:
        live.swap(1)
    assert "\n" not in str(e.value)
    assert live.generation == open_host(home).generations.current() == 2
    assert said(live.predict(TEXTS)) == before


def test_without_the_warm_up_a_generation_that_answers_nan_would_be_served(home, monkeypatch):
    """The twin of the warm-up."""
    live = open_live(home)
    BROKEN["the router answers NaN"](home)
    monkeypatch.setattr("redhost.core.live._warm_up", lambda composed: None)
    live.swap(1)
    assert live.predict(TEXTS)[0].probability != live.predict(TEXTS)[0].probability


# -- memory -------------------------------------------------------------------------------------


def test_an_old_generation_is_freed_when_its_last_request_is_answered(home) -> None:
    live = open_live(home)
    gc.disable()  # nothing but the last reference may be needed
    try:
        request, old = live.composed, weakref.ref(live.composed)
        router = weakref.ref(live.composed.bus.router)
        live.swap(1)
        assert live.alive() == (2, 1)
        assert request.answer(TEXTS)[0].generation == 2
        del request
        assert (old(), router(), live.alive()) == (None, None, (1,))
    finally:
        gc.enable()


def test_what_is_served_is_held_against_gc_until_nobody_needs_it(home) -> None:
    live, other = open_live(home), open_host(home)
    live.swap(1)
    other.rollback(2)  # another process goes on; this one still answers with 1
    assert [lease.generation for lease in other.generations.gc(keep=1, dry_run=True).held] == [1]
    assert other.generations.gc(keep=1).generations == ()
    live.swap(2)
    gc.collect()
    assert other.generations.gc(keep=1).generations == (1,)
    assert {a.generation for a in live.predict(TEXTS)} == {2}


def test_a_swap_that_fails_holds_nothing(home) -> None:
    live = open_live(home)
    (home / "generations" / "1" / "router.safetensors").write_bytes(b"broken")
    with pytest.raises(redhost.RedhostError):
        live.swap(1)
    assert {x.generation for x in redhost.Leases(home).live()} == {2}


def test_a_host_keeps_the_current_generation_only(home) -> None:
    host = open_host(home)
    current, other = weakref.ref(host.composed), weakref.ref(host.load(1))
    gc.collect()
    assert current() is host.composed and other() is None
    host.rollback()
    assert host.composed.generation == 1 and current() is None


def test_generations_on_one_backbone_share_it(home) -> None:
    live = open_live(home)
    trunk = live.composed.backbone.trunk
    live.swap(1)
    assert live.composed.backbone.trunk is trunk


# -- caches are keyed by content ----------------------------------------------------------------


@pytest.fixture
def two_backbones(environment, tmp_path: Path) -> Path:
    """Two generations on two backbones of one name, and one expert's id."""
    home = tmp_path / "home"
    for seed in (0, 1):
        backbone = backbone_project(tmp_path / f"b{seed}" / "red-backbone-tiny-random", seed=seed)
        project = tmp_path / f"e{seed}" / "red-expert-one"
        expert_project(project, "one", backbone, seed=seed)
        dists = [environment.install(backbone), environment.install(project)]
        redhost.Host.open(home, backbone="tiny-random").recompose(accept=True)
        for dist in dists:
            environment.uninstall(dist)
    return home


def swapped_answers(home: Path) -> tuple[list[object], list[object]]:
    """Return what a live host answers after swaps between both, and what fresh ones do."""
    live = redhost.Live.open(home)
    texts = [f"one {n}" for n in range(3)]
    found: list[object] = []
    held = []  # requests under way, which keep the other backbone in memory
    for number in (1, 2, 1):
        live.swap(number)
        held.append(live.composed)
        found.append(said(live.predict(texts)))
    return found, [said(redhost.Host.open(home).load(n).answer(texts)) for n in (1, 2, 1)]


def test_backbones_of_one_name_are_never_mistaken_for_each_other(two_backbones) -> None:
    found, expected = swapped_answers(two_backbones)
    assert found == expected and found[0] != found[1]


def test_backbones_remembered_by_name_would_be_mistaken(two_backbones, monkeypatch) -> None:
    """The twin: a stale cache key."""

    class ByName(dict[object, object]):
        def get(self, key, default=None):
            return super().get("tiny-random", default)

        def __setitem__(self, key, value) -> None:
            super().__setitem__("tiny-random", value)

    real = Loader.__init__

    def init(self, home: Path, **options) -> None:
        real(self, home, **options)
        self._backbones = ByName()

    fresh = swapped_answers(two_backbones)[1]
    monkeypatch.setattr(Loader, "__init__", init)
    assert swapped_answers(two_backbones)[0] != fresh


# -- many threads -------------------------------------------------------------------------------


@pytest.fixture
def same_experts(installed, tmp_path: Path) -> Path:
    """Two generations of the same experts that answer differently, for their routers do."""
    home = tmp_path / "home"
    for router in ("evidence", "centroid"):
        open_host(home).recompose(router=router, accept=True)
    return home


class InPlace(redhost.Live):
    """The twin of the pointer: the parts of what is served are replaced one after the other."""

    def _move(self, composed: redhost.Composed) -> None:
        serving = self._serving
        if serving is None:
            super()._move(composed)
            return
        object.__setattr__(serving, "bus", composed.bus)
        time.sleep(0.02)  # as long as copying weights of a real size takes
        object.__setattr__(serving, "generation", composed.generation)


def storm(live: redhost.Live, *, swaps: int, clients: int = 4) -> tuple[int, int, list[str]]:
    """Ask from many threads while generations change; return answers, mixed ones, failures."""
    texts = ["red 61 b", "nothing 4"]
    golden = {n: said(live.host.load(n).answer(texts)) for n in (1, 2)}
    assert all(one != two for one, two in zip(golden[1], golden[2], strict=True))
    stop, mixed, failed, asked = threading.Event(), [], [], []

    def client() -> None:
        while not stop.is_set():
            try:
                answers = live.predict(texts)
            except Exception as e:
                failed.append(repr(e))
                return
            asked.append(len(answers))
            numbers = {a.generation for a in answers}
            if len(numbers) != 1 or said(answers) != golden[numbers.pop()]:
                mixed.append(answers)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for n in range(swaps):
        live.swap(n % 2 + 1)
        with pytest.raises(redhost.UnknownNameError):
            live.swap(99)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(asked), len(mixed), failed


def test_no_answer_is_mixed_or_fails_while_generations_change(same_experts) -> None:
    live = open_live(same_experts)
    asked, mixed, failed = storm(live, swaps=12)
    assert (mixed, failed) == (0, []) and asked > 0
    gc.collect()
    assert live.alive() == (live.generation,)


def test_changing_what_is_served_in_place_mixes_answers(same_experts) -> None:
    """The twin of the test above."""
    _, mixed, _ = storm(open_live(same_experts, InPlace), swaps=12)
    assert mixed > 0


def test_one_tokenizer_serves_threads_that_want_it_set_differently(bare) -> None:
    """A fingerprint needs the tokenizer without truncation while others cut texts with it."""
    text = "What is 1? " * 40

    def ask(n: int) -> object:
        return bare.fingerprint() if n % 2 else bare.encode([text])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(64)))
    assert len(set(found[1::2])) == 1
    assert all(torch.equal(h, found[0]) for h in found[::2])


def test_a_pass_with_hooks_never_leaks_into_another_threads_pass(bare) -> None:
    from redhost.core.taps import grafted

    texts = ["What is 1?", "nothing"]
    plain = bare.encode(texts)

    def ask(n: int) -> torch.Tensor:
        if n % 2:
            return bare.encode(texts)
        return grafted(bare.trunk, texts, read=0, write=1, step=lambda states: states + 1)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(64)))
    assert all(torch.equal(h, plain) for h in found[1::2])
    assert all(torch.equal(g, found[0]) for g in found[::2])


def test_without_the_trunks_guard_a_hooked_pass_leaks(model_folder, monkeypatch) -> None:
    """The twin of the two tests above; a backbone of its own, for hooks may stay in it."""
    bare = redhost.Backbone.load(f"hf:{model_folder}")

    class Open:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(bare.trunk, "guard", Open())
    with pytest.raises(Exception):  # noqa: B017  (wrong numbers, or whatever a hook raises)
        for _ in range(20):
            test_a_pass_with_hooks_never_leaks_into_another_threads_pass(bare)


def test_records_of_the_fixture_are_what_they_say(home) -> None:
    records = open_host(home).generations.history()
    assert [(r.number, r.parent, len(r.experts)) for r in records] == [(1, None, 3), (2, 1, 2)]
    assert msgspec.json.decode(open_host(home).generations.file(1, "receipt.json"))["generation"]
