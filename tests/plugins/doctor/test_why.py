"""What `redhost why` says of an expert in every state that it may have."""

from __future__ import annotations

import hashlib
import json
import shutil
import time

import pytest
from redhost_doctor.standing import State
from redhost_doctor.why import unknown

from redhost.testing import Environment


def test_a_composed_expert_has_its_whole_page(world, wheels) -> None:
    answer = world.why("apples")
    assert (answer["state"], answer["reason"], answer["command"]) == ("composed", "", "")
    [package] = answer["installed"]
    assert package["origin"] == {"kind": "wheel", "place": str(wheels["apples"])}
    assert (package["dist"], package["version"], package["state"]) == (
        "red-expert-apples",
        "0.1.0",
        "attached",
    )
    entry = answer["membership"]
    assert (entry["generation"], entry["since"], entry["build_since"]) == (1, 1, 1)
    assert entry["digest"] == package["digest"] == world.stored("apples").name
    assert answer["offer"]["labels"] == ["apples", "no apples"]
    assert answer["offer"]["backbone"] == "tiny-random"
    receipt = json.loads((world.home / "generations" / "1" / "receipt.json").read_text())
    accuracy = receipt["accuracy"]
    assert answer["gate"] == {
        "rows": accuracy["rows"]["apples"],
        "before": None,
        "after": accuracy["after"]["apples"],
        "own": accuracy["own"]["apples"],
        "weight": receipt["health"]["usage"]["apples"],
    }
    assert answer["earlier"] == [] and world.why("red-expert-apples") == answer


def test_an_unknown_expert_is_one_line_with_the_nearest_names(world) -> None:
    done = world.shell("redhost why aples")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "unknown expert 'aples'. Did you mean 'apples'?" in done.stderr


def test_a_wheel_that_was_added_with_a_key_has_its_signer(world, wheels) -> None:
    folder = world.folder
    wheel = shutil.copy(wheels["new"], folder)
    world.run("redhost new-key author.pem")
    from redhost_author.signing import make_signer

    from redhost.registry.wheel.signing import read_keys

    make_signer(folder / "author.pem")(folder / wheels["new"].name)
    [key] = read_keys([folder / "author.pub.pem"])
    world.run(f"redhost add {wheel} --key author.pub.pem --accept --tolerance 100")
    answer = world.why("apples")
    assert answer["installed"][0]["origin"] == {"kind": "added", "place": str(wheel)}
    entry = answer["membership"]
    assert (entry["version"], entry["signer"]) == ("0.2.0", key.fingerprint)
    assert entry["wheel"] == hashlib.sha256(wheels["new"].read_bytes()).hexdigest()
    assert (entry["generation"], entry["since"], entry["build_since"]) == (2, 1, 2)
    [earlier] = answer["earlier"]
    assert (earlier["version"], earlier["generations"]) == ("0.1.0", [1])
    assert answer["gate"]["before"] is not None
    page = world.run("redhost why apples").splitlines()
    starts = [line.partition(" ")[0] for line in page]
    assert starts[:2] == ["apples", "installed"] and starts[-2:] == ["gate", "earlier"]
    assert f"sha256:{key.fingerprint[:12]}" in "".join(x for x in page if x.startswith("signed"))


def test_a_wheel_that_was_added_by_name_has_its_source(world) -> None:
    name = f"red-expert-apples==0.2.0 --find-links {world.wheels}"
    world.run(f"redhost add {name} --accept --tolerance 100")
    page = world.run("redhost why apples").splitlines()
    assert page[1].endswith(f"red-expert-apples 0.2.0 from {world.wheels}, by name")


def test_a_disabled_one_that_was_added_by_its_path_keeps_it(world, wheels) -> None:
    wheel = shutil.copy(wheels["new"], world.folder)
    world.run(f"redhost add {wheel} --accept --tolerance 100")
    world.run("redhost disable apples")
    world.run("redhost recompose --accept")
    answer = world.why("apples")
    assert (answer["state"], answer["membership"]) == ("disabled", None)
    assert answer["installed"][0]["origin"] == {"kind": "added", "place": str(wheel)}


def test_what_is_uninstalled_and_came_from_nowhere_known_is_not_to_be_synchronised(world) -> None:
    """The wheel that it was added from is gone: sync finds none."""
    wheel = shutil.copy(world.wheels / "red_expert_apples-0.2.0-py3-none-any.whl", world.folder)
    world.run(f"redhost add {wheel} --accept --tolerance 100")
    world.pip("uninstall -y red-expert-apples")
    (world.folder / "red_expert_apples-0.2.0-py3-none-any.whl").unlink()
    answer = world.why("apples")
    assert (answer["state"], answer["command"]) == ("uninstalled", "redhost recompose")
    assert "no source of red-expert-apples 0.2.0 is known" in answer["reason"]


def test_what_is_uninstalled_answers_from_the_store_until_it_is_withdrawn(world) -> None:
    world.pip("uninstall -y red-expert-pears")
    answer = world.why("pears")
    assert (answer["state"], answer["installed"]) == ("uninstalled", [])
    assert answer["membership"] is not None
    assert {*answer["offer"]["labels"]} == {"pears", "no pears"}
    assert answer["command"] == "redhost sync"
    world.run("redhost recompose")
    answer = world.why("pears")
    assert (answer["state"], answer["membership"], answer["gate"]) == ("withdrawn", None, None)
    assert {*answer["offer"]["labels"]} == {"pears", "no pears"}
    assert [b["generations"] for b in answer["earlier"]] == [[1]]
    assert answer["command"] == "redhost rollback 1" and "fell from" in answer["reason"]
    world.run(answer["command"])
    assert world.why("pears")["state"] == "uninstalled"


def test_a_gap_ends_a_membership_and_what_is_not_on_disk_is_unknown(world) -> None:
    world.run("redhost disable pears && redhost recompose")
    assert world.why("pears")["state"] == "disabled"
    world.run("redhost enable pears")
    assert world.why("pears")["state"] == "new"
    assert world.why("pears")["command"] == "redhost recompose --dry-run"
    world.run("redhost recompose")
    entry = world.why("pears")["membership"]
    assert (entry["generation"], entry["since"], entry["is_exact"]) == (3, 3, True)
    assert world.why("apples")["membership"]["since"] == 1
    world.run("redhost gc --keep 1")
    entry = world.why("apples")["membership"]
    assert (entry["since"], entry["is_exact"]) == (3, False)


def test_another_build_that_is_installed_waits_for_a_recompose(world, wheels) -> None:
    world.pip(f"install --no-deps {wheels['new']}")
    answer = world.why("apples")
    assert (answer["state"], answer["command"]) == ("changed", "redhost recompose --dry-run")
    assert answer["membership"]["version"] == "0.1.0"
    assert answer["installed"][0]["version"] == "0.2.0"
    assert answer["offer"]["labels"] == ["apples", "no apples"]  # what answers
    world.run("redhost recompose")
    assert world.why("apples")["state"] == "composed"


def test_a_disabled_one_is_enabled_by_the_name_that_it_was_disabled_by(world) -> None:
    world.run("redhost disable red-expert-pears")
    assert (world.why("pears")["state"], world.why("pears")["membership"] is None) == (
        "disabled",
        False,
    )
    world.run("redhost recompose")
    answer = world.why("pears")
    assert answer["command"] == "redhost enable red-expert-pears"
    world.run(answer["command"])
    assert world.why("pears")["state"] == "new"


def test_a_damaged_copy_is_stored_again(world, flip_byte) -> None:
    flip_byte(world.stored("pears") / "card.jsonl")
    answer = world.why("pears")
    assert answer["state"] == "damaged" and "digest" not in answer["command"]
    world.run(answer["command"])
    assert world.why("pears")["state"] == "composed"


def test_a_changed_file_is_put_back(world, flip_byte) -> None:
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    answer = world.why("apples")
    assert answer["state"] == "broken" and "weights_digest" in answer["reason"]
    world.run(answer["command"])
    assert world.why("apples")["state"] == "composed"


def test_one_for_another_backbone_is_incompatible_and_the_next_step_says_all(world) -> None:
    answer = world.why("range3")
    assert (answer["state"], answer["membership"]) == ("incompatible", None)
    assert "backbone_mismatch" in answer["reason"] and answer["offer"]["backbone"] == "tiny"
    assert world.shell(answer["command"]).returncode == 0  # sound, on its own backbone


def test_one_that_a_recompose_left_out_has_the_refusal_of_the_receipt(world) -> None:
    module = world.site / "red_expert_copy"
    shutil.copytree(world.site / "red_expert_apples", module)
    file = module / "expert.json"
    changed = {**json.loads(file.read_text()), "id": "copy", "norm_bound": 1e-9}
    file.write_text(json.dumps(changed))
    entries = {"redhost.experts": "copy = red_expert_copy"}
    Environment(world.site).write_info("red-expert-copy", "0.1.0", "red_expert_copy", entries)
    assert world.why("copy")["state"] == "new"
    shutil.rmtree(world.home)
    world.run("redhost recompose --backbone tiny-random")
    answer = world.why("copy")
    assert answer["state"] == "left_out" and answer["reason"].startswith("norm_bound: ")
    assert answer["installed"][0]["origin"]["kind"] == "index"
    world.run(answer["command"])
    Environment(world.site).uninstall("red-expert-copy")
    answer = world.why("copy")
    assert (answer["state"], answer["offer"]) == ("uninstalled", None)


def test_a_refused_one_is_led_to_the_dry_run_that_says_why(world, hijack) -> None:
    hijack(world)
    world.run("redhost recompose")  # refused; and nothing is published that would list it
    answer = world.why("copy")
    assert (answer["state"], answer["command"]) == ("new", "redhost recompose --dry-run")
    assert "copy: hijack: " in world.run(answer["command"])


def test_a_refused_one_that_a_receipt_lists_has_its_code(world, hijack) -> None:
    hijack(world)
    world.run("redhost recompose --router centroid")
    answer = world.why("copy")
    assert answer["state"] == "left_out" and answer["reason"].startswith("hijack: ")
    assert answer["command"] == "redhost recompose --dry-run"
    assert "copy: hijack: " in world.run(answer["command"])
    time.sleep(2)  # so that its files are newer than the receipt
    manifest = world.site / "red_expert_copy" / "expert.json"
    manifest.write_bytes(manifest.read_bytes())
    answer = world.why("copy")
    assert answer["state"] == "new" and "hijack: " in answer["reason"]
    assert answer["command"] == "redhost recompose --dry-run"


def test_where_both_copies_are_damaged_the_wheel_puts_them_back(world, flip_byte) -> None:
    world.run("redhost recompose --router centroid --accept")
    flip_byte(world.stored("pears") / "expert.safetensors")
    flip_byte(world.site / "red_expert_pears" / "expert.safetensors")
    answer = world.why("pears")
    assert answer["state"] == "damaged" and "rollback" not in answer["command"]
    world.run(answer["command"])
    assert world.why("pears")["state"] == "composed" and world.members == ["apples", "pears"]


def test_without_experts_the_next_step_is_to_get_one() -> None:
    error = unknown("x", [])
    assert error.exit_code == 3
    assert "pip install red-expert-" in error.hint and "redhost new-expert" in error.hint


def test_a_damaged_receipt_leaves_out_what_it_says_alone(world, flip_byte) -> None:
    flip_byte(world.home / "generations" / "1" / "receipt.json")
    answer = world.why("apples")
    assert (answer["state"], answer["gate"]) == ("composed", None)


@pytest.mark.parametrize("name", ["gone", "red-expert-gone"])
def test_what_is_only_disabled_can_be_enabled(world, name) -> None:
    from redhost.registry.queries.settings import set_disabled

    set_disabled(world.home, name)
    answer = world.why(name)
    assert (answer["state"], answer["installed"], answer["offer"]) == ("disabled", [], None)
    world.run(answer["command"])
    assert world.shell(f"redhost why {name}").returncode == 2


def test_one_that_is_revoked_leads_to_a_recompose_and_another_version(world, revoke) -> None:
    revoke(world, world.stored("apples").name)
    answer = world.why("apples")
    assert (answer["state"], answer["command"]) == ("revoked", "redhost recompose")
    assert (
        "leaks rows" in answer["reason"] and "redhost add red-expert-apples==" in answer["reason"]
    )
    assert world.run("redhost why apples").startswith("apples      revoked: leaks rows (")
    world.run(answer["command"])
    answer = world.why("apples")
    assert (answer["state"], answer["membership"]) == ("revoked", None)
    assert answer["command"].endswith("pip uninstall --yes red-expert-apples")
    stays = next(x for x in world.run("redhost sync").splitlines() if "red-expert-apples" in x)
    assert "it is revoked: leaks rows" in stays and "current composition" not in stays


def test_every_state_has_been_seen() -> None:
    from pathlib import Path
    from typing import get_args

    text = Path(__file__).read_text("utf-8")
    assert not [s for s in get_args(State) if f'"{s}"' not in text]


def test_a_folder_of_pages_is_an_index_to_pip(tmp_path, monkeypatch) -> None:
    from redhost_doctor.source import arguments_for

    (tmp_path / "red-expert-mail").mkdir()
    here, name = str(tmp_path), "red-expert-mail==0.1.0"
    of_wheels = ("--no-index", "--find-links", here, name)
    assert arguments_for("red-expert-mail", "0.1.0", source=here) == of_wheels
    (tmp_path / "red-expert-mail" / "index.html").write_text("")
    of_pages = ("--index-url", tmp_path.as_uri(), name)
    assert arguments_for("red-expert-mail", "0.1.0", source=here) == of_pages
    monkeypatch.chdir(tmp_path)
    assert arguments_for("red-expert-mail", "0.1.0") == ()  # no source is known
