"""A live host whose experts join, leave and are exchanged, one change at a time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import redhost
from redhost.core.model.stored import GenerationLoader
from redhost.testing import assert_same_answers

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]


@pytest.fixture
def live(installed, tmp_path: Path) -> redhost.Live:
    """It serves generation 1, of three experts."""
    redhost.Host.open(tmp_path / "home", backbone="toy").recompose()
    return redhost.Live.open(tmp_path / "home", backbone="toy")


def served(live: redhost.Live) -> set[str]:
    [answer] = live.predict(TEXTS[:1])
    return set(answer.weights) - {"backbone"}


def fresh(live: redhost.Live) -> redhost.ComposedModel:
    return redhost.Host.open(live.host.home, backbone="toy").composed


def test_experts_leave_join_and_are_exchanged(live) -> None:
    assert live.detach("red", expected=1).generation == 2
    assert served(live) == {"green", "blue"}
    assert live.replace("blue", "red", expected=2, accept=True).parent == 2
    assert served(live) == {"green", "red"}
    assert (
        live.attach(redhost.plugins.Installed("blue"), expected=3).generation
        == live.generation
        == 4
    )
    assert served(live) == {"green", "red", "blue"}
    assert_same_answers(live.composed, fresh(live), TEXTS)
    gc.collect()
    assert live.alive() == (4,)


def test_what_was_installed_a_moment_ago_joins(
    live, environment, build_expert, texts_of, tmp_path
) -> None:
    """The same process sees it; experts are data, so nothing is imported."""
    folder = build_expert(tmp_path / "late", "red", expert_id="late")
    live.host.list_experts()  # what importlib remembers
    environment.install(folder.parents[1])
    live.attach(redhost.plugins.Installed("late"), accept=True)
    assert "late" in served(live)


def test_the_first_generation_may_come_from_attach(installed, tmp_path) -> None:
    live = redhost.Live.open(tmp_path / "empty", backbone="toy")
    assert live.attach("red").generation == live.generation == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda x: x.attach("red"), redhost.UsageError),
        (lambda x: x.attach(redhost.plugins.Installed("rde")), redhost.errors.UnknownNameError),
        (lambda x: x.detach("nobody"), redhost.errors.UnknownNameError),
        (lambda x: x.replace("nobody", "red"), redhost.errors.UnknownNameError),
        (lambda x: x.detach("red", expected=7), redhost.errors.StaleGenerationError),
        (lambda x: x.detach("red", router="nothing"), redhost.RedhostError),
    ],
)
def test_what_cannot_be_composed_changes_nothing(live, change, error) -> None:
    before = live.composed
    with pytest.raises(error):
        change(live)
    assert live.composed is before and live.host.generations.numbers() == (1,)
    assert live.detach("red").generation == 2  # and nothing is held


def unserved(live: redhost.Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detach an expert; what is composed then cannot be loaded."""

    def broken(self: GenerationLoader, number: int) -> redhost.ComposedModel:
        raise redhost.errors.StoreError(f"cannot read generation {number}")

    with monkeypatch.context() as patch:
        patch.setattr(GenerationLoader, "read", broken)
        with pytest.raises(redhost.errors.StoreError, match="cannot read generation 2"):
            live.detach("red")


def test_what_cannot_be_served_leaves_the_old_one_answering_and_current(live, monkeypatch) -> None:
    held = live.host.composed  # so that composing need not read it
    before = live.composed
    unserved(live, monkeypatch)
    assert live.composed is before and held is not None
    assert live.host.generations.current() == live.generation == 1
    assert {x.generation for x in redhost.plugins.Leases(live.host.home).live()} == {1}


def test_without_going_back_a_restart_would_serve_what_cannot_be(live, monkeypatch) -> None:
    """Control of the test above."""
    held = live.host.composed
    generations = type(live.host.generations)
    monkeypatch.setattr(generations, "rollback", lambda self, number: number)
    unserved(live, monkeypatch)
    assert held is not None
    assert (live.host.generations.current(), live.generation) == (2, 1)


def test_what_another_process_published_is_not_changed_unseen(live) -> None:
    redhost.Host.open(live.host.home, backbone="toy").recompose(router="centroid", accept=True)
    with pytest.raises(redhost.errors.StaleGenerationError, match="found generation 2"):
        live.detach("red", expected=1)
    assert live.generation == 1
    live.refresh()
    assert live.detach("red").parent == 2


# -- many threads -------------------------------------------------------------------------------


def at_once(live: redhost.Live, clients: int = 4) -> tuple[list[int], set[str], int]:
    """Detach from many threads while others ask: generations made, refusals, wrong answers."""
    golden = {1: live.predict(TEXTS)}
    stop, wrong, gate = threading.Event(), [], threading.Barrier(clients)

    def ask() -> None:
        while not stop.is_set():
            answers = live.predict(TEXTS)
            [number] = {a.generation for a in answers}
            if golden.setdefault(number, answers) != answers:
                wrong.append(answers)

    def change(name: str) -> int | str:
        gate.wait(30)
        try:
            return live.detach(name, expected=1, accept=True).generation or 0
        except redhost.RedhostError as e:
            return type(e).__name__

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for thread in askers:
        thread.start()
    try:
        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(change, ["red", "green"] * (clients // 2)))
    finally:
        stop.set()
        for thread in askers:
            thread.join()
    made = [x for x in found if isinstance(x, int)]
    return made, {x for x in found if isinstance(x, str)}, len(wrong)


def test_of_many_changes_at_once_one_is_made(live) -> None:
    made, refused, wrong = at_once(live)
    assert (made, wrong, live.generation) == ([2], 0, 2)
    assert refused <= {"SwapInProgressError", "StaleGenerationError"}
    assert live.host.generations.numbers() == (1, 2)
    assert_same_answers(live.composed, fresh(live), TEXTS)


def test_without_turns_more_than_one_is_made(live, monkeypatch) -> None:
    """Control of the test above: nobody looks whose turn it is, nor what is served."""

    @contextmanager
    def anybody(self: redhost.Live, expected: int | None):
        yield

    monkeypatch.setattr(redhost.Live, "_alone", anybody)
    made, refused, _ = at_once(live)
    assert len(made) > 1 or "UnknownNameError" in refused


def test_while_one_is_made_the_old_generation_answers_and_a_swap_is_refused(
    live, monkeypatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    detach = redhost.Host.detach

    def slow(self: redhost.Host, expert_id: str, **options) -> redhost.Receipt:
        inside.set()
        assert go_on.wait(30)
        return detach(self, expert_id, **options)

    monkeypatch.setattr(redhost.Host, "detach", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(live.detach, "red")
        assert inside.wait(30)
        changes: list[Callable[[], object]] = [live.swap, lambda: live.attach("red")]
        for change in changes:
            with pytest.raises(redhost.errors.SwapInProgressError):
                change()
        assert live.predict(TEXTS)[0].generation == 1
        go_on.set()
        assert first.result().generation == 2
