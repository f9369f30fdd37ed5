"""The bench: its clock adds up, and its steps are functions that exist."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from red_lab.bench import page, profile_child
from red_lab.bench.processes import run_command
from red_lab.bench.profile import PREDICT, RECOMPOSE
from red_lab.bench.profile_child import Clock, find


@pytest.mark.parametrize("steps", [PREDICT, RECOMPOSE], ids=["predict", "recompose"])
def test_every_step_is_a_function_that_exists(steps) -> None:
    places = [place for found in steps.values() for place in found]
    assert len(places) == len(set(places))
    assert [place for place in places if find(place) is None] == []
    assert find("redhost.core.host:no_such_function") is None
    assert find("redhost.core.no_such_module:function") is None


def test_a_step_does_not_count_what_a_step_inside_it_took(monkeypatch) -> None:
    ticks = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(profile_child, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    clock = Clock()
    with clock.step("outer"), clock.step("inner"):
        pass
    assert dict(clock.seconds) == {"inner": 3.0, "outer": 7.0}


def test_a_wrapped_function_does_what_it_did(monkeypatch) -> None:
    module: Any = ModuleType("made_up")
    module.double = lambda x: 2 * x
    monkeypatch.setitem(sys.modules, "made_up", module)
    clock = Clock()
    assert clock.wrap("doubling", "made_up:double")
    assert not clock.wrap("halving", "made_up:halve")
    assert module.double(4) == 8
    assert [*clock.seconds] == ["doubling"]


def test_tables_tell_the_longest_step_first_and_what_was_not_found() -> None:
    text = page("profile", {"steps": {"predict": {"a": 0.001, "b": 1.5}}, "lost": ["m:f"]})
    assert "**predict**: 1.50 s" in text
    assert text.index("| b | 1.50 s | 99.9% |") < text.index("| a | 1.00 ms | 0.1% |")
    assert text.endswith("m:f.")


def test_a_process_that_fails_says_so() -> None:
    run_command([sys.executable, "-c", "import os; assert os.environ['TURN'] == '1'"], TURN="1")
    with pytest.raises(RuntimeError, match="no such thing"):
        run_command([sys.executable, "-c", "raise SystemExit('no such thing')"])
