"""Dropping an expert's copies: what the current generation needs stays."""

from __future__ import annotations

from redhost.registry.home.generations import Generations, PurgeReport, drop_copies


def test_copies_go_and_the_generations_that_needed_them_are_named(home, publish) -> None:
    publish("a", "b")
    publish("b", a=b"another build of a")
    publish("b")
    generations = Generations(home)
    of_a = {m.digest for c in generations.history() for m in c.experts if m.id == "a"}
    dropped = drop_copies(generations, "a")
    assert set(dropped.digests) == of_a and len(of_a) == 2
    assert sorted(dropped.generations) == [1, 2]
    assert not of_a & generations.store.digests()
    assert generations.load(3).members().keys() == {"b"}


def test_a_copy_in_use_stays(home, publish) -> None:
    publish("a", "b")
    generations = Generations(home)
    before = generations.store.digests()
    assert drop_copies(generations, "a") == PurgeReport()
    assert generations.store.digests() == before


def test_of_an_expert_that_was_never_composed_nothing_goes(home, publish) -> None:
    publish("a")
    assert drop_copies(Generations(home), "nobody") == PurgeReport()
