"""Data packages that are broken in their own ways: commands on other experts name them and work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def long_range(drafted: Any) -> None:
    name = f"{drafted.module}/expert.json"
    manifest = json.loads(drafted.members[name])
    manifest["bus_api"] = f">=1.{'9' * 5000}"
    drafted.members[name] = json.dumps(manifest).encode()


def deep_manifest(drafted: Any) -> None:
    drafted.members[f"{drafted.module}/expert.json"] = b"[" * 100_000 + b"]" * 100_000


def three_offers(drafted: Any) -> None:
    module = drafted.module
    copies = {
        name.replace(module, f"{module}_more", 1): data
        for name, data in drafted.members.items()
        if name.startswith(f"{module}/")
    }
    drafted.members |= copies
    rows = "".join(f"{end or 'x'} = {module}{end}\n" for end in ("", "_more", "_none"))
    drafted.members[f"{drafted.info}/entry_points.txt"] = f"[redhost.experts]\n{rows}".encode()


def slow_ranges(drafted: Any) -> None:
    name = f"{drafted.module}/expert.json"
    manifest = json.loads(drafted.members[name])
    manifest["bus_api"] = ",".join([">=1"] * 100_000)
    drafted.members[name] = json.dumps(manifest).encode()


BROKEN: dict[str, Callable[[Any], None]] = {
    "longrange": long_range,
    "deep": deep_manifest,
    "offers": three_offers,
    "ranges": slow_ranges,
}


@pytest.mark.parametrize("case", BROKEN)
def test_commands_on_other_experts_name_the_broken_package_and_work(
    case: str, make_venv: Any, draft: Any, tmp_path: Path
) -> None:
    venv, home, dist = make_venv(tmp_path / "venv"), tmp_path / "home", f"red-expert-{case}"
    drafted, good = draft(case), draft("good")
    BROKEN[case](drafted)
    venv.install_each(drafted.write(tmp_path), good.write(tmp_path))
    done = venv.session(
        ("list-experts",),
        ("status",),
        ("recompose",),
        ("check",),
        ("remove", "good"),
        home=home,
    )
    listed, status, recomposed, checked, removed = done
    assert [code for code, _, _ in (listed, recomposed, removed)] == [0, 0, 0], done
    assert (status[0] in {0, 1}) and checked[0] == 1
    assert all("Traceback" not in out + err for _, out, err in done)
    for _, out, err in (listed, recomposed, checked):
        assert case in out + err, (out, err)
    assert dist in "".join(out + err for _, out, err in done)
    assert not list(venv.site.glob("red_expert_good*"))
