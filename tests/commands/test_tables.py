"""Tables on stdout: names stay whole in a narrow terminal."""

from __future__ import annotations

import sys

import pytest

from redhost.commands.tables import LONG, table


def test_a_long_table_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    table("things", ("id", "size"), [(f"thing{n}", n or None) for n in range(LONG + 1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["things", "id        size", "thing0"]
    assert lines[-1] == f"thing{LONG}  {LONG}"
    assert len(lines) == LONG + 3


def test_a_short_table_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    table("things", ("id",), [("thing",)] * LONG)
    assert "┃ id" in capsys.readouterr().out


NAME = "red-expert-of-a-team-with-a-long-name"


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
def test_no_terminal_is_too_narrow_for_a_whole_name(capsys, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [("smalltalk", NAME, "0.1.0 (editable)", "enabled", "residual", "hidden")] * 2
    table("things", ("id", "dist", "version", "state", "form", "writes"), rows, whole=("dist",))
    lines = capsys.readouterr().out.splitlines()
    assert (
        len([line for line in lines if "smalltalk" in line.split()])
        == 2
        == sum(NAME in line.split() for line in lines)
    )
    assert ("┃ id" in "".join(lines)) == (width >= 100)  # lines give way before words do
    assert width < 80 or all(len(line) <= width for line in lines)
    words = {"(editable)", "enabled", "residual"}
    assert (words <= set(" ".join(lines).split())) == (width >= 100)


def test_what_has_no_words_to_spare_is_narrower_by_whole_words(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table("things", ("id", "what"), [("a", "one two three four five six"), ("b", "東京 " * 9)])
    lines = capsys.readouterr().out.splitlines()
    assert "│ a  │ one two three four    │" in lines
    assert "│ b  │ 東京 東京 東京 東京   │" in lines
