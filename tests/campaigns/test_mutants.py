"""A short campaign of mutants, and campaigns that must notice a host that fails."""

from __future__ import annotations

import os
import sys
import time
from random import Random

import pytest
import torch
from mutants import judge as judging
from mutants.generate import Mutant, kinds, makers, mutants
from mutants.judge import Result, judge_all
from mutants.report import page
from mutants.run import summary
from mutants.subject import KINDS, WHEEL, Subject
from redhost_author.testing import judge_expert

from redhost.registry.package import payload as contents
from redhost.registry.package import safetensors_check as integrity
from redhost.registry.package.checked import CODES

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def bad(count: int, *, target: str | None = None) -> list[Result]:
    chosen = (m for m in mutants(count, seed=0) if target in {None, m.target})
    return [r for r in judge_all(chosen) if r.bad]


def test_every_kind_of_mutant_is_refused_or_is_the_same_expert() -> None:
    results = list(judge_all(mutants(900, seed=1)))
    assert [r for r in results if r.bad] == []
    metrics = summary(results)
    assert sum(metrics["outcomes"].values()) == 900
    assert metrics["kinds_judged"] > 350 and metrics["bad"] == []
    assert set(metrics["targets"]) == {"RECORD", "canary", "card", "manifest", "weights", "wheel"}
    # Wherever a header or a tensor was broken and the manifest made to fit, the host looks deeper.
    assert {"weights_header", "card_tensors", "canary_values", "digest"} <= set(metrics["codes"])
    # Outside the archive and its RECORD nothing that changed is taken for the same.
    same = {r.target for r in results if r.outcome == "same"}
    assert same <= {"RECORD", "wheel"}
    limits = {"header_seconds": 0.05, "runs": 1, "files": []}
    head = {"count": 900, "seed": 1}
    assert "**0 crashes, hangs or breaches" in page({**metrics, **head, "limits": limits})


def test_every_kind_is_made_of_every_subject() -> None:
    """In three turns, however many kinds there are."""
    most = max(len([*makers(Subject.make(card))]) for card in KINDS)
    assert {(m.target, m.kind) for m in mutants(3 * most, seed=0)} == kinds()


@pytest.mark.parametrize(
    ("target", "kind", "codes"),
    [
        ("wheel", "unchecked byte code", {"record_unlisted"}),
        ("wheel", "folders too deep", {"name_limit"}),
        ("wheel", "path too long", {"name_limit"}),
        ("wheel", "too many files", {"archive_size"}),
        ("wheel", "comment on a member", {"archive_data"}),
        ("wheel", "second name", {"archive_data"}),
        ("wheel", "headers that disagree", {"archive_data", "archive_broken"}),
        ("wheel", "number of members", {"archive_data"}),
        ("wheel", "entry point of another name", {"entry_points"}),
        ("wheel", "header twice", {"metadata_row"}),
        ("RECORD", "too many rows", {"name_limit"}),
        ("canary", "of zeros", {"canary_power"}),
        ("canary", "of an expert that says nothing", {"canary_power"}),
        ("canary", "of any tolerance", {"canary_power"}),
        ("weights", "all huge, manifest made to fit", {"weights_range"}),
        ("canary", "all huge, manifest made to fit", {"canary_range", "canary_values"}),
        ("card", "all huge, manifest made to fit", {"card_range"}),
    ],
)
def test_what_is_meant_to_pass_is_refused_for_what_it_is(target, kind, codes) -> None:
    """By the code that `add` and `check` give, in every card's expert and by every chance."""
    assert codes <= CODES.keys()
    found = set[str]()
    for subject in map(Subject.make, KINDS):
        made = [make for t, k, make in makers(subject) if (t, k) == (target, kind)]
        times = 1 if "too many" in kind else 6  # those are large, and all alike
        for n, make in enumerate(made * times):
            mutant = Mutant(n, target, kind, make(subject, Random(n)), subject.digest)
            outcome, code = judging.judge_mutant(mutant)
            assert outcome == "refused"
            found.add(code)
    assert found and found <= codes


def test_equal_seeds_make_equal_mutants_and_other_seeds_others() -> None:
    def of(seed: int) -> list[object]:
        return [(m.target, m.kind, m.data) for m in mutants(60, seed=seed)]

    assert of(3) == of(3)
    assert of(3) != of(4)
    assert len(kinds()) > 350


def test_control_that_does_not_look_into_cards_crashes(monkeypatch) -> None:
    monkeypatch.setattr(contents, "_card", lambda *_: ())
    assert {"crash"} == {r.outcome for r in bad(1200, target="card")}


def test_control_that_takes_json_as_it_comes_crashes(monkeypatch) -> None:
    """Without a look at names and offsets, safetensors meets what it was never meant to."""
    monkeypatch.setattr(integrity, "unique_keys", dict)
    monkeypatch.setattr(integrity, "_check_layout", lambda *_: None)
    monkeypatch.setattr(contents, "check_tensors", lambda *_, **__: ())
    assert bad(1200, target="canary")


def test_control_that_checks_no_digest_lets_another_expert_in() -> None:
    def trusting(mutant: Mutant) -> tuple[str, str]:
        found = judge_expert(mutant.data)
        if isinstance(found, str):
            return ("same", "") if found == mutant.digest else ("another digest was let in", "")
        return "refused", found[0].code

    cards = (m for m in mutants(400, seed=0) if m.target == "card")
    results = list(judge_all(cards, judge=trusting))
    assert "another digest was let in" in {r.why for r in results}


def first(judge) -> list[str]:
    return [r.outcome for r in judge_all(mutants(2, seed=0), judge=judge)]


def test_a_campaign_notices_what_raises_or_dies(monkeypatch) -> None:
    assert first(lambda mutant: ("refused", "")) == ["refused"] * 2
    assert first(lambda mutant: 1 / 0) == ["crash"] * 2
    assert first(lambda mutant: os._exit(3)) == ["crash"] * 2
    assert first(lambda mutant: ("let in", "")) == ["crash"] * 2


def test_a_campaign_notices_what_takes_long(monkeypatch) -> None:
    def slow(mutant: Mutant) -> tuple[str, str]:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return "refused", ""

    monkeypatch.setattr(judging, "SECONDS", 0.2)
    assert first(slow) == ["hang"] * 2
    monkeypatch.setattr(judging, "PATIENCE", 0.5)
    assert first(lambda mutant: time.sleep(60)) == ["crash"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_a_campaign_notices_what_takes_much_memory() -> None:
    def greedy(mutant: Mutant) -> tuple[str, str]:
        return "refused", str(len(b"x" * (96 * 2**20)))

    def modest(mutant: Mutant) -> tuple[str, str]:
        return "refused", str(len(b"x" * (16 * 2**20)))

    if judging._start_memory() is None:
        pytest.skip("the highest use of memory cannot be reset here")
    assert first(greedy) == ["memory"] * 2
    assert first(modest) == ["refused"] * 2


def test_the_good_wheel_is_let_in_so_that_mutants_are_refused_for_what_was_broken(tmp_path) -> None:
    subject = Subject.make("texts")
    path = tmp_path / WHEEL
    path.write_bytes(subject.wheel)
    assert judge_expert(path, digest=subject.digest) == subject.digest
