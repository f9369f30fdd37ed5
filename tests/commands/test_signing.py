"""Signing as authors and users type it: new-key, pack --sign, check --key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.wheel.signing import signature_path

PROJECT = str(Path(__file__).parents[2] / "plugins" / "red-expert-range3")


@pytest.fixture
def wheel(call: Any) -> Path:
    """A wheel in the current folder, and the key pair that signed it."""
    printed = json.loads(call("new-key", "author.pem", "--json")[1])
    assert (printed["private"], printed["public"]) == ("author.pem", "author.pub.pem")
    code, out, _ = call("pack", PROJECT, "--out", "dist", "--sign", "author.pem")
    [wheel] = Path("dist").glob("*.whl")
    assert code == 0 and signature_path(wheel).name in out
    return wheel


def checked(call: Any, *arguments: str) -> tuple[int, list[str]]:
    code, out, _ = call("check", *arguments, "--json")
    return code, [v["code"] for report in json.loads(out) for v in report["violations"]]


def test_check_takes_the_authors_key_and_no_other(call: Any, wheel: Path) -> None:
    assert call("new-key", "other.pem")[0] == 0
    assert checked(call, str(wheel), "--key", "author.pub.pem") == (0, [])
    both = ("--key", "other.pub.pem", "--key", "author.pub.pem")
    assert checked(call, str(wheel), *both) == (0, [])
    assert checked(call, str(wheel), "--key", "other.pub.pem") == (1, ["signature_wrong"])
    signature_path(wheel).unlink()
    assert checked(call, str(wheel), "--key", "author.pub.pem") == (1, ["signature_missing"])
    assert checked(call, str(wheel)) == (0, [])


def test_a_signature_stays_beside_the_very_bytes_it_is_of(call: Any, wheel: Path) -> None:
    code, out, _ = call("pack", PROJECT, "--out", "dist")  # the same bytes once more
    assert code == 0 and "removed" not in out and signature_path(wheel).exists()
    wheel.write_bytes(b"another build")
    code, out, _ = call("pack", PROJECT, "--out", "dist")
    assert code == 0 and not signature_path(wheel).exists()
    assert f"removed {signature_path(wheel)}: " in out


def test_a_projects_keys_are_for_its_wheels_and_leave_the_rest_alone(
    call: Any, wheel: Path
) -> None:
    Path("pyproject.toml").write_text('[tool.redhost]\nkeys = ["author.pub.pem"]\n')
    signature_path(wheel).unlink()
    assert checked(call, str(wheel)) == (1, ["signature_missing"])
    assert checked(call, "range3", PROJECT) == (0, [])


@pytest.mark.parametrize("targets", [(), ("range3",), (PROJECT,)])
def test_a_key_vouches_for_nothing_but_wheels(call: Any, wheel: Path, targets: Any) -> None:
    code, _, err = call("check", *targets, "--key", "author.pub.pem")
    assert code == 2 and err.count("\n") == 1 and "--key needs wheels" in err


def test_a_key_that_cannot_sign_leaves_no_wheel(call: Any) -> None:
    assert call("new-key", "author.pem")[0] == 0
    code, _, err = call("pack", PROJECT, "--out", "dist", "--sign", "author.pub.pem")
    assert code == 2 and err.count("\n") == 1 and not Path("dist").exists()
