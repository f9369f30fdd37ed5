"""Checks are independent of each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redhost_doctor.doctor import CHECKS, examine
from redhost_doctor.finding import Finding, Subject


def test_a_check_that_raises_is_a_finding_and_the_others_go_on(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def broken(_: Subject) -> Iterator[Finding]:
        raise ValueError("odd")

    monkeypatch.setitem(CHECKS, "python", broken)
    examined = examine(tmp_path / "home", checks=["python", "temporary"])
    first, *others = examined.findings
    assert (first.check, first.state) == ("python", "fail") and "ValueError: odd" in first.text
    assert [x.check for x in others] == ["temporary"] and not examined.ok
