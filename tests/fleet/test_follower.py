"""A replica follows what was promoted, and goes on with what it has whatever the store does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from redhost_fleet.documents import Comparison, Drift, ReplicaReport
from redhost_fleet.fleet import Fleet
from redhost_fleet.follower import Follower, replica_id
from redhost_fleet.rollout import judge
from redhost_fleet.status import fleet_status, live_shares, status_lines

import redhost

TEXT = "What is 37 plus 12?"


class Broken:
    """A store that can be switched off."""

    def __init__(self, storage) -> None:
        self.storage, self.url, self.off = storage, storage.url, False

    def __getattr__(self, name: str):
        if self.off:
            raise redhost.errors.StoreError("the store does not answer")
        return getattr(self.storage, name)


@pytest.fixture
def pushed(fleet: Fleet, author: redhost.Host) -> Fleet:
    for number in (1, 2, 3):
        fleet.push(author.generations, number)
    return fleet


def test_it_serves_what_was_promoted_and_says_so(pushed, open_live, tmp_path) -> None:
    live = open_live(tmp_path / "replica")
    follower = Follower(live, pushed, where="http://here:1")
    follower.look()
    assert follower.latest.state == "waiting" and live.generation is None
    pushed.promote(2)
    follower.look()
    assert live.generation == 2
    assert live.predict([TEXT])[0].generation == 2
    pushed.promote(3)
    pushed.promote(1)
    follower.look()  # the last counts
    assert live.generation == 1
    report = pushed.report_of(replica_id("http://here:1"))
    assert (report.state, report.generation, report.production) == ("serving", 1, 3)
    assert 0 <= report.seconds < 30


def test_a_replica_that_starts_without_the_store_serves_the_last_it_has_verified(
    pushed, open_live, tmp_path
) -> None:
    pushed.promote(2)
    Follower(open_live(tmp_path / "replica"), pushed, where="a").look()
    storage = Broken(pushed.storage)
    storage.off = True
    live = open_live(tmp_path / "replica")
    follower = Follower(live, Fleet(storage), where="a")
    follower.look()
    assert live.predict([TEXT])[0].generation == 2
    assert follower.latest.state == "behind" and "does not answer" in follower.latest.reason
    pushed.promote(3)
    storage.off = False
    follower.look()
    assert live.generation == 3 and follower.latest.state == "serving"


def test_an_empty_folder_is_a_store_that_went_away(fleet, open_live, tmp_path) -> None:
    follower = Follower(open_live(tmp_path / "replica"), fleet, where="a")
    follower.look()
    assert follower.latest.state == "behind" and "no store" in follower.latest.reason
    assert fleet.reports() == []  # or a mistyped store would seem to be one


def test_what_is_not_whole_yet_is_tried_again_and_what_is_damaged_is_refused(
    pushed, open_live, tmp_path
) -> None:
    live = open_live(tmp_path / "replica")
    follower = Follower(live, pushed, where="a")
    pushed.promote(1)
    follower.look()
    document = pushed.document(2)
    sha = document.files["router.safetensors"]
    data = pushed.storage.read(f"objects/{sha}")
    pushed.promote(2)
    pushed.storage.write(f"objects/{sha}", data[:-1])
    follower.look()
    follower.look()
    assert live.generation == 1 and follower.latest.state == "behind"
    assert follower.latest.production == 2  # seen, and refused: the next one may be better
    pushed.storage.write(f"objects/{sha}", data)
    pushed.promote(2, why="again")
    follower.look()
    assert live.generation == 2 and follower.latest.reason == ""


def test_a_generation_that_was_exchanged_under_its_number_is_refused(
    pushed, open_live, open_host, tmp_path
) -> None:
    pushed.promote(1)
    entry = pushed.stages["production"].last()
    false = msgspec.structs.replace(entry, sequence=2, digest="0" * 64)
    pushed.storage.write("stages/production/00000002.json", msgspec.json.encode(false))
    live = open_live(tmp_path / "replica")
    follower = Follower(live, pushed, where="a")
    follower.look()
    assert live.generation is None and "not the one" in follower.latest.reason


def test_a_canary_is_ready_beside_production_and_becomes_it_without_loading(
    pushed, open_live, tmp_path, monkeypatch
) -> None:
    begun = []
    live = open_live(tmp_path / "replica")
    follower = Follower(
        live, pushed, where="a", trial=lambda entry, model, counted: begun.append((entry, model))
    )
    pushed.promote(1)
    pushed.promote(2, stage="canary", share=0.25, mirror=True)
    follower.look()
    entry, model = begun.pop()
    assert (entry.share, entry.mirror, model.generation) == (0.25, True, 2)
    assert live.generation == 1 and follower.latest.trial == 2
    pushed.promote(2)
    follower.look()
    assert live.generation == 2 and live.composed is model
    pushed.promote(None, stage="canary", why="done")
    follower.look()
    assert begun.pop()[1] is None and follower.latest.trial is None


def test_a_canary_that_cannot_be_run_ends_the_last_one(pushed, open_live, tmp_path) -> None:
    """Or what was counted of the last one would be reported, and judged, as this one's."""
    running = []
    follower = Follower(
        open_live(tmp_path / "replica"),
        pushed,
        where="a",
        trial=lambda entry, model, counted: running.append(model and model.generation),
    )
    pushed.promote(1)
    pushed.promote(2, stage="canary")
    follower.look()
    assert running[-1] == 2
    sha = pushed.document(3).files["router.safetensors"]
    pushed.promote(3, stage="canary")
    pushed.storage.write(f"objects/{sha}", b"damaged")
    follower.look()
    assert running[-1] is None and follower.latest.trial is None
    assert follower.latest.state == "behind" and follower.latest.canary == 2
    decision, _ = judge(pushed)
    assert decision.action == "end" and replica_id("a") in decision.why
    assert pushed.stages["canary"].last().generation is None
    follower.look()
    assert follower.latest.refused == "" and judge(pushed) is None


def test_live_shares_of_a_fleet_are_its_replicas_weighed_by_their_texts(pushed) -> None:
    pushed.promote(1)
    when = pushed.stages["production"].last().when
    for n, (share, texts, generation) in enumerate(((0.2, 300, 1), (0.6, 100, 1), (0.9, 500, 2))):
        shares = {"range1": share, "range3": 1 - share}
        report = ReplicaReport(
            replica=f"r{n}", when=when, generation=generation, shares=shares, texts=texts
        )
        pushed.report(report)
    found = live_shares(fleet_status(pushed))
    assert found is not None and (found.generation, found.texts) == (1, 400)
    assert found.shares == pytest.approx({"range1": 0.3, "range3": 0.7})


@pytest.mark.parametrize("share", [1.0, 1 / 3])
def test_no_share_of_a_fleet_is_more_than_all(author, pushed, share) -> None:
    """Rounding must not write a file that nobody can read."""
    pushed.promote(1)
    when = pushed.stages["production"].last().when
    shares = {"range1": share, "range3": 1 - share}
    for n, texts in enumerate((200, 252, 239, 239)):
        report = ReplicaReport(replica=f"r{n}", when=when, generation=1, texts=texts)
        pushed.report(msgspec.structs.replace(report, shares=shares))
    found = live_shares(fleet_status(pushed))
    assert found is not None and all(0 <= s <= 1 for s in found.shares.values())
    assert found.shares == pytest.approx(shares)
    redhost.plugins.write_live_shares(author.home, found)
    assert author.recompose(prior="live", accept=True, dry_run=True).router.shares


def test_counts_outlive_a_restart_and_belong_to_one_canary(pushed, open_live, tmp_path) -> None:
    counted = []

    def restarted() -> Follower:
        return Follower(
            open_live(tmp_path / "replica"),
            pushed,
            where="a",
            trial=lambda entry, model, before: counted.append(dict(before)),
            observe=lambda report: msgspec.structs.replace(
                report, comparisons={"range1": Comparison(texts=5, agree=4, worse=1)}
            ),
        )

    pushed.promote(1)
    pushed.promote(2, stage="canary")
    restarted().look()
    restarted().look()
    pushed.promote(3, stage="canary")
    restarted().look()
    begun = [{}, {"range1": Comparison(texts=5, agree=4, worse=1)}, {}]
    assert counted == [x for some in begun for x in ({}, some)]  # each time the last one ends first


def test_counts_outlive_a_restart_after_which_the_store_was_slow(
    pushed, open_live, tmp_path, monkeypatch
) -> None:
    counts, begun = {"range1": Comparison(texts=5, agree=4, worse=1)}, []

    def restarted(known: dict[str, Comparison]) -> Follower:
        return Follower(
            open_live(tmp_path / "replica"),
            pushed,
            where="a",
            trial=lambda entry, model, before: begun.append((model is None, dict(before))),
            observe=lambda report: msgspec.structs.replace(report, comparisons=known),
        )

    pushed.promote(1)
    pushed.promote(2, stage="canary")
    pushed.storage.write(f"replicas/{replica_id('a')}.json", b"damaged")  # is written over
    restarted(counts).look()
    follower, pull = restarted({}), pushed.pull

    def slow(generations: object, number: int) -> object:
        if number == 2:
            raise redhost.errors.StoreError("the store does not answer")
        return pull(generations, number)

    with monkeypatch.context() as patched:
        patched.setattr(type(pushed), "pull", lambda _, *given: slow(*given))
        follower.look()  # which reports, with nothing counted yet
    assert pushed.report_of(follower.latest.replica).comparisons == {}
    follower.look()
    assert begun[-1] == (False, counts)


def test_the_judge_adds_up_what_replicas_of_this_canary_counted(pushed) -> None:
    assert judge(pushed) is None
    pushed.promote(1)
    pushed.promote(2, stage="canary")
    reported = [(1, 1, 6), (1, 1, 7), (7, 1, 900), (1, 0, 900)]
    for n, (canary, production, worse) in enumerate(reported):
        counts = {"range1": Comparison(worse=worse, same=100)}
        report = ReplicaReport(replica=f"r{n}", canary=canary, production=production)
        pushed.report(msgspec.structs.replace(report, comparisons=counts))
    decision, entry = judge(pushed)
    assert decision.labelled == 213 and entry.generation == 2
    assert decision.action == "end" and pushed.stages["canary"].last().generation is None
    assert "13 worse" in pushed.stages["canary"].last().why
    assert pushed.stages["production"].last().generation == 1


def test_the_history_names_whose_texts_have_drifted(pushed) -> None:
    pushed.promote(1)
    pushed.promote(2, stage="canary")
    seen = {
        "range1": Drift(texts=900, distance=0.1),
        "range2": Drift(texts=900, distance=0.8),
        "range3": Drift(texts=20, distance=3.0),
    }
    counts = {"range2": Comparison(worse=40, same=100)}
    report = ReplicaReport(replica="r", canary=1, production=1, comparisons=counts, drift=seen)
    pushed.report(report)
    assert judge(pushed)[0].action == "end"
    why = pushed.stages["canary"].last().why
    assert "range2 by 0.80" in why and "range1" not in why and "range3" not in why


def test_the_judge_ends_a_canary_that_somebody_promoted(pushed) -> None:
    pushed.promote(1)
    pushed.promote(2, stage="canary")
    pushed.promote(2)
    decision, _ = judge(pushed)
    assert decision.action == "end" and pushed.stages["canary"].last().generation is None
    assert pushed.stages["production"].last().generation == 2


def test_a_report_of_a_newer_replica_is_read_and_a_damaged_one_left_out(pushed) -> None:
    pushed.report(ReplicaReport(replica="old"))
    newer = {**msgspec.to_builtins(ReplicaReport(replica="new")), "mood": "fine"}
    pushed.storage.write("replicas/new.json", msgspec.json.encode(newer))
    pushed.storage.write("replicas/broken.json", b'{"replica": ')
    assert [r.replica for r in pushed.reports()] == ["new", "old"]


def test_status_shows_who_is_behind_and_why(pushed, open_live, tmp_path) -> None:
    pushed.promote(1)
    follower = Follower(open_live(tmp_path / "replica"), pushed, where="a")
    follower.look()
    pushed.promote(2)
    status = fleet_status(pushed)
    [replica] = status.replicas
    assert (status.production.generation, replica.lag, replica.lost) == (2, 1, False)
    assert pushed.report_of(replica.report.replica) is not None
    shown = "\n".join(status_lines(status))
    assert replica.report.replica in shown and "generation 2" in shown
    pushed.forget(replica.report.replica)
    assert fleet_status(pushed).replicas == ()


def test_two_replicas_of_one_machine_have_ids_of_their_own(tmp_path: Path) -> None:
    assert replica_id("http://here:1") != replica_id("http://here:2")
    assert replica_id("http://here:1") == replica_id("http://here:1")
