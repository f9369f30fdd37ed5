"""An old generation is freed with its last request, and what is served is held."""

from __future__ import annotations

import gc
import weakref

import pytest

import redhost

from .conftest import TEXTS, open_host, open_live


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
    assert {x.generation for x in redhost.plugins.Leases(home).live()} == {2}


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
