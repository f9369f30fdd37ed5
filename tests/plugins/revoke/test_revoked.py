"""What a home knows to be revoked: fetched, verified, never lifted by anyone but who revoked it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from redhost_revoke.lists import MOST

from redhost.registry.home.store import Store

TEXT = "What is 37 plus 12?"


@pytest.fixture
def fetch(call, published, home):
    """Fetch the list of the index, trusting one key, and return exit code and output."""

    def run(*options: str, by: str = "ours"):
        return call(
            "revoked", "--index-url", published.url, "--key", published.public(by), *options
        )

    return run


def test_a_revoked_member_is_named_refused_and_composed_without(
    call, fetch, published, digests, home
) -> None:
    published.revoke(digests["range2"])
    code, out, _ = fetch()
    assert code == 0 and "serial 1" in out and "composed here" in out and "leaks rows" in out
    code, out, err = call("predict", TEXT)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "'range2'" in err and "leaks rows" in err and "redhost recompose" in err
    assert call("route", TEXT)[0] == 1
    code, out, _ = call("list-experts", "--json")
    states = {x["id"]: (x["state"], x["code"]) for x in json.loads(out)}
    assert states["range2"] == ("compatible", "revoked") and states["range1"] == ("attached", None)
    code, out, _ = call("check", "range1", "range2", "--json")
    found = {x["target"]: [v["code"] for v in x["violations"]] for x in json.loads(out)}
    assert code == 1 and found == {"range1": [], "range2": ["revoked"]}
    drift = json.loads(call("status", "--json")[1])["drift"]
    assert [(d["id"], d["kind"]) for d in drift] == [("range2", "revoked")]
    assert published.is_named_in(drift[0]["installed"]) and "leaks rows" in drift[0]["installed"]
    code, out, _ = call("recompose", "--json")
    receipt = json.loads(out)
    assert code == 0 and "range2" not in receipt["experts"]
    assert [(x["id"], x["code"]) for x in receipt["left_out"]] == [("range2", "revoked")]
    assert call("predict", TEXT)[0] == 0
    assert call("rollback")[0] == 1  # to the generation that has it
    assert json.loads(call("status", "--json")[1])["generation"] == 2


def test_what_follows_the_lock_and_status_name_who_revoked_and_a_step_that_works(
    call, fetch, published, digests, home
) -> None:
    """No step leads to a generation that is refused: the parent has what is revoked, too."""
    call("disable", "range5")
    assert call("recompose", "--accept")[0] == 0  # generation 2, whose parent may answer so far
    assert "rollback" not in call("status")[1]
    call("enable", "range5")
    assert "next: redhost recompose   (or redhost rollback)" in call("status")[1]
    published.revoke(digests["range2"])
    fetch()
    code, out, err = call("recompose", "--locked")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "range2 is revoked" in err and "leaks rows" in err and published.is_named_in(err)
    code, out, _ = call("status")
    assert code == 0 and "range2: revoked" in out and published.is_named_in(out)
    assert out.endswith("next: redhost recompose\n")
    assert json.loads(call("status", "--json")[1])["back"] is None
    assert call("recompose", "--accept")[0] == 0
    assert call("recompose", "--locked")[0] == 0
    call("disable", "range1")
    code, _, err = call("recompose", "--locked")
    assert code == 1 and "range1 is disabled" in err and "redhost enable range1" in err


def test_control_without_the_list_all_of_this_passes(call, digests, home) -> None:
    assert call("predict", TEXT)[0] == 0
    assert json.loads(call("status", "--json")[1])["drift"] == []
    assert call("revoked")[1].startswith(f"{home} knows of nothing revoked")


def test_accept_is_not_enough_and_allow_is(call, fetch, published, digests, home) -> None:
    published.revoke(digests["range2"])
    fetch()
    code, out, _ = call("recompose", "--accept", "--json")
    assert code == 0 and "range2" not in json.loads(out)["experts"]
    code, out, _ = call("revoked", "--allow", digests["range2"], "--json")
    assert json.loads(out)["revoked"] == [] and json.loads(out)["changed"]
    assert call("rollback")[0] == 0 and call("predict", TEXT)[0] == 0
    assert call("revoked", "--forbid", digests["range2"])[0] == 0
    assert call("predict", TEXT)[0] == 1
    assert call("revoked", "--allow", "0" * 64)[0] == 2  # nobody revoked it


def test_a_wheel_of_revoked_content_is_not_added(
    call, fetch, published, home, draft, tmp_path
) -> None:
    wheel = draft("extra").write(tmp_path)
    code, out, _ = call(
        *("revoke", str(wheel), "--reason", "no good", "--key", str(published.keys["ours"][0])),
        *("--list", str(published.path), "--json"),
    )
    assert code == 0 and json.loads(out)["serial"] == 1
    entry = json.loads(published.path.read_bytes())["entries"][0]
    assert (entry["dist"], entry["version"]) == ("red-expert-extra", "0.1.0")
    fetch()
    code, _, err = call("add", str(wheel), "--accept")
    assert code == 1 and err.count("\n") == 1 and "revoked" in err and "no good" in err
    code, out, _ = call("check", str(wheel))
    assert code == 1 and "no good" in out
    assert json.loads(call("status", "--json")[1])["generation"] == 1


def test_a_withdrawal_lifts_an_entry(call, fetch, published, digests) -> None:
    published.revoke(digests["range2"])
    fetch()
    assert call("predict", TEXT)[0] == 1
    published.revoke(digests["range2"], withdraw=True)
    assert "serial 2" in fetch()[1]
    assert call("predict", TEXT)[0] == 0


def test_a_new_list_says_that_it_is_new_and_what_it_lifts(
    call, published, digests, fetch, home
) -> None:
    def revoke(name: str):
        return call(
            *("revoke", digests[name], "--reason", "no good"),
            *("--key", str(published.keys["ours"][0]), "--list", str(published.path)),
        )[1]

    assert f"begins {published.path}:" in revoke("range2") and "begins" not in revoke("range1")
    assert "lifts" not in fetch()[1]
    published.path.unlink()
    printed = [revoke("range1") for _ in range(3)]  # the serial is higher than before
    assert ["begins" in out for out in printed] == [True, False, False]
    out = fetch()[1]
    assert f"lifts red-expert-range2 0.1.0 ({digests['range2'][:12]}…)" in out
    assert out.count("lifts ") == 1 and "lifts" not in call("revoked")[1]
    published.revoke(digests["range1"], withdraw=True)
    lifted = json.loads(fetch("--json")[1])["lifted"]
    assert [entry["digest"] for entry in lifted] == [digests["range1"]]


def test_a_second_list_of_a_key_is_refused_by_what_is_wrong_with_it(
    call, fetch, published, digests
) -> None:
    published.revoke(digests["range1"])
    assert fetch()[0] == 0
    published.path.unlink()
    published.revoke(digests["range2"])
    code, _, err = fetch()
    assert code == 1 and "expected a serial above 1, found other entries under that serial" in err
    assert "a key has one list" in err


def test_an_older_list_is_refused(call, fetch, published, digests) -> None:
    old = published.revoke(digests["range1"])
    published.revoke(digests["range2"])
    assert fetch()[0] == 0
    published.path.write_bytes(old)
    code, _, err = fetch()
    assert code == 1 and err.count("\n") == 1
    assert "expected a serial of 2 or more, found 1" in err
    assert len(json.loads(call("revoked", "--json")[1])["revoked"]) == 2


def test_of_two_places_the_newest_list_of_a_key_counts(
    call, published, digests, home, tmp_path
) -> None:
    """A mirror that is behind neither lifts anything nor keeps others from being read."""
    (mirror := tmp_path / "mirror").mkdir()
    lock = json.loads((home / "redhost.lock").read_bytes())
    lock["experts"]["range1"]["source"] = str(mirror)  # asked before the other one
    lock["experts"]["range3"]["source"] = str(published.folder)
    (home / "redhost.lock").write_text(json.dumps(lock))

    def fetch() -> tuple[int, str, str]:
        return call("revoked", "--fetch", "--key", published.public(), "--json")

    old = published.revoke(digests["range1"])
    published.revoke(digests["range2"])
    for here, there in ((mirror, published.folder), (published.folder, mirror)):
        (home / "revoked.json").unlink(missing_ok=True)
        new = max((published.folder, mirror), key=lambda x: len(_read(x)))
        data = _read(new)
        (here / "revoked.json").write_bytes(old)
        (there / "revoked.json").write_bytes(data)
        for changed in (True, False):
            code, out, _ = fetch()
            known = json.loads(out)
            assert code == 0 and known["changed"] is changed
            assert {*known["revoked"]} == {digests["range1"], digests["range2"]}
            assert [here.name in line and "serial 1" in line for line in known["behind"]] == [True]
    for folder in (mirror, published.folder):  # the rollback: no place has the newest any more
        (folder / "revoked.json").write_bytes(old)
    code, _, err = fetch()
    assert code == 1 and "expected a serial of 2 or more, found 1" in err
    assert len(json.loads(call("revoked", "--json")[1])["revoked"]) == 2


def _read(folder: Path) -> bytes:
    path = folder / "revoked.json"
    return path.read_bytes() if path.exists() else b""


def test_two_places_with_other_lists_of_one_serial_are_a_fault(
    call, published, digests, home, tmp_path
) -> None:
    (mirror := tmp_path / "mirror").mkdir()
    lock = json.loads((home / "redhost.lock").read_bytes())
    lock["experts"]["range1"]["source"] = str(mirror)
    lock["experts"]["range3"]["source"] = str(published.folder)
    (home / "redhost.lock").write_text(json.dumps(lock))
    (mirror / "revoked.json").write_bytes(published.revoke(digests["range1"]))
    published.path.unlink()
    published.revoke(digests["range2"])
    code, _, err = call("revoked", "--fetch", "--key", published.public())
    assert code == 1 and "other entries under that serial" in err
    assert not (home / "revoked.json").exists()


def test_two_lists_of_one_serial_are_a_fault(call, fetch, published, digests) -> None:
    published.revoke(digests["range1"])
    fetch()
    assert json.loads(fetch("--json")[1])["changed"] is False  # the very same list
    published.path.unlink()
    published.revoke(digests["range2"])
    code, _, err = fetch()
    assert code == 1 and "other entries under that serial" in err


def test_a_forged_list_is_refused(call, fetch, published, digests, home) -> None:
    published.revoke(digests["range1"])
    for fields in (
        {"serial": 7},
        {"entries": []},
        {"signature": {}},
        {"signature": {"mediaType": "x"}},
    ):
        original = published.path.read_bytes()
        published.change(**fields)
        code, _, err = fetch()
        assert code == 1 and err.count("\n") == 1 and "was refused" in err, fields
        published.path.write_bytes(original)
    code, _, err = fetch(by="theirs")  # a key that is not trusted signed it
    assert code == 1 and "expected a signature by" in err
    assert not (home / "revoked.json").exists()
    assert fetch()[0] == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": "redhost.revoked/2", "serial": 1, "entries": [], "signature": {}}',
        b'{"schema": "redhost.revoked/1", "serial": 0, "entries": [], "signature": {}}',
        b'{"schema": "redhost.revoked/1", "serial": 1, "entries": [], "more": 1}',
        b'{"schema": "redhost.revoked/1", "serial": 1, "entries": [{"digest": "no"}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_list_is_one_line(fetch, published, home, data) -> None:
    published.path.write_bytes(data)
    code, _, err = fetch()
    assert (code, err.count("\n")) == (1, 1) and "was refused" in err
    assert not (home / "revoked.json").exists()


def test_a_huge_list_is_not_read(call, fetch, published, home) -> None:
    published.path.write_bytes(b" " * (MOST + 1))
    code, _, err = fetch()
    assert code == 3 and f"{MOST:,}" in err and err.count("\n") == 1
    code, _, err = call(
        "revoked", "--index-url", str(published.folder), "--key", published.public()
    )
    assert code == 3 and not (home / "revoked.json").exists()


def test_a_key_lifts_and_holds_back_only_its_own(call, published, digests, tmp_path) -> None:
    """Each trusted key may revoke everything, and lift what it revoked itself."""
    both = ("--key", published.public("ours"), "--key", published.public("theirs"))
    published.revoke(digests["range1"])
    assert call("revoked", "--index-url", published.url, *both)[0] == 0
    published.path.unlink()
    for serial in range(3):  # a higher serial than ours, and an empty list in the end
        published.revoke(digests["range2"], by="theirs", withdraw=bool(serial % 2))
    published.revoke(digests["range2"], by="theirs", withdraw=True)
    code, out, _ = call("revoked", "--index-url", published.url, *both, "--json")
    known = json.loads(out)
    assert code == 0 and len(known["lists"]) == 2
    assert known["revoked"] == [digests["range1"]]
    code, _, err = call(
        *("revoke", digests["range1"], "--withdraw", "--list", str(published.path)),
        *("--key", str(published.keys["ours"][0])),
    )
    assert code == 1 and "signature" in err  # the list is not ours


def test_a_list_of_everything_stops_all_and_says_the_way_out(
    call, fetch, published, digests
) -> None:
    published.revoke(*digests.values())
    assert fetch()[0] == 0
    assert call("predict", TEXT)[0] == 1
    code, _, err = call("recompose", "--accept")
    assert code == 1 and err.count("\n") == 1 and "red-backbone-tiny" in err and "--allow" in err
    for digest in digests.values():
        assert call("revoked", "--allow", digest)[0] == 0
    assert call("predict", TEXT)[0] == 0


def test_the_list_of_a_key_that_is_no_longer_trusted_is_dropped(
    call, fetch, published, digests
) -> None:
    published.revoke(digests["range2"])
    signer = json.loads(fetch("--json")[1])["lists"][0]["signer"]
    assert call("revoked", "--forget", "0" * 64)[0] == 2
    assert call("predict", TEXT)[0] == 1
    code, out, _ = call("revoked", "--forget", signer, "--json")
    assert code == 0 and json.loads(out)["lists"] == [] and json.loads(out)["changed"]
    assert call("predict", TEXT)[0] == 0


@pytest.mark.parametrize("cut", [0, 1, 200, -2])
def test_a_damaged_file_is_an_error_that_names_the_mend(
    call, fetch, published, digests, home, cut
) -> None:
    published.revoke(digests["range2"])
    fetch()
    path = home / "revoked.json"
    path.write_bytes(path.read_bytes()[:cut])
    for command in (
        ("predict", TEXT),
        ("list-experts",),
        ("status",),
        ("recompose", "--accept"),
        ("rollback", "1"),
        ("revoked",),
    ):
        code, _, err = call(*command)
        assert (code, err.count("\n")) == (3, 1), command
        assert str(path) in err and "redhost revoked --index-url URL" in err
    assert fetch()[0] == 0
    assert call("predict", TEXT)[0] == 1 and "revoked" in call("list-experts")[1]


def test_a_flipped_digit_does_not_lift_an_entry(call, fetch, published, digests, home) -> None:
    published.revoke(digests["range2"])
    fetch()
    path = home / "revoked.json"
    other = ("0" if digests["range2"][0] != "0" else "1") + digests["range2"][1:]
    path.write_text(path.read_text().replace(digests["range2"], other))
    code, _, err = call("predict", TEXT)
    assert code == 3 and "is damaged" in err


def test_a_link_is_replaced_and_not_written_through(fetch, published, digests, home) -> None:
    published.revoke(digests["range2"])
    elsewhere = home.parent / "elsewhere"
    elsewhere.write_bytes(b"mine")
    assert fetch()[0] == 0
    os.replace(home / "revoked.json", home.parent / "kept.json")  # noqa: PTH105
    (home / "revoked.json").symlink_to(home.parent / "kept.json")
    before = (home.parent / "kept.json").read_bytes()
    published.revoke(digests["range1"])
    assert fetch()[0] == 0
    assert not (home / "revoked.json").is_symlink()
    assert (home.parent / "kept.json").read_bytes() == before
    assert len(Store(home).revoked()) == 2


def test_nothing_is_fetched_that_nobody_named(call, published, digests, home) -> None:
    published.revoke(digests["range2"])
    assert call("revoked")[0] == 0
    code, _, err = call("revoked", "--fetch")
    assert code == 2 and "no index is named" in err
    code, _, err = call("revoked", "--index-url", published.url)
    assert code == 2 and "no key is trusted" in err
    assert not (home / "revoked.json").exists()


def test_the_keys_of_the_project_are_those_of_wheels(call, published, digests, tmp_path) -> None:
    published.revoke(digests["range2"])
    (tmp_path / "pyproject.toml").write_text(f"[tool.redhost]\nkeys = [{published.public()!r}]\n")
    assert call("revoked", "--index-url", published.url)[0] == 0
    assert call("predict", TEXT)[0] == 1


def test_the_source_that_the_lock_records_is_a_named_one(
    call, published, digests, home, tmp_path
) -> None:
    lock = json.loads((home / "redhost.lock").read_bytes())
    lock["experts"]["range1"]["source"] = str(published.folder)
    (home / "redhost.lock").write_text(json.dumps(lock))
    published.revoke(digests["range2"])
    code, out, _ = call("revoked", "--fetch", "--key", published.public(), "--json")
    assert code == 0 and json.loads(out)["revoked"] == [digests["range2"]]


def test_revoke_needs_a_reason_a_target_and_a_private_key(call, published, digests) -> None:
    path, (private, public) = str(published.path), published.keys["ours"]
    digest = digests["range1"]
    for arguments, reason in (
        ((digest, "--key", str(private)), "has a reason"),
        (("nothing", "--reason", "x", "--key", str(private)), "cannot be revoked"),
        ((digest, "--reason", "x", "--key", str(public)), "cannot sign with"),
        ((digest, "--withdraw", "--key", str(private)), "does not revoke"),
    ):
        code, _, err = call("revoke", *arguments, "--list", path)
        assert (code, err.count("\n")) == (2, 1) and reason in err
        assert not published.path.exists()


def test_sync_refuses_a_lock_of_revoked_content(call, fetch, published, digests, home) -> None:
    assert call("sync", "--from", str(published.folder))[0] == 0  # nothing is missing
    published.revoke(digests["range2"])
    fetch()
    code, _, err = call("sync", "--from", str(published.folder))
    assert (code, err.count("\n")) == (1, 1)
    assert "red-expert-range2" in err and "leaks rows" in err


def test_revoked_experts_are_not_exported(call, fetch, published, digests, home, tmp_path) -> None:
    published.revoke(digests["range2"])
    fetch()
    code, out, err = call("export-wheels", str(tmp_path / "out"), "--only-named")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "red-expert-range2 0.1.0, which was not exported" in err and "leaks rows" in err
    assert not (tmp_path / "out").exists()


def test_a_backbone_is_checked_too(call, fetch, published, digests) -> None:
    assert call("check", "tiny")[0] == 0
    published.revoke(digests["backbone"])
    fetch()
    code, out, _ = call("check", "tiny", "--json")
    assert code == 1 and [v["code"] for v in json.loads(out)[0]["violations"]] == ["revoked"]
