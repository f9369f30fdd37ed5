"""The table of the four seeds: whatever a row names is there, and the page is what it writes."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner
from pages.links import anchors
from pages.page import ROOT, read_page
from red_lab.cli import lab
from red_lab.seeds import SEEDS, STATUSES, Row, page, read_rows, seeds

import redhost
from redhost.cli import cli

RESULTS = ROOT / "docs" / "results"
ROWS = read_rows()


def titled(row: Row) -> str:
    return f"{row.seed} {row.section} {row.claim}"


def test_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    assert (RESULTS / "seeds.md").read_text("utf-8") == page(ROWS, RESULTS)
    copied = tmp_path / "results"
    for file in {f.file for row in ROWS for f in row.figures}:
        (copied / file).parent.mkdir(parents=True, exist_ok=True)
        (copied / file).write_bytes((RESULTS / file).read_bytes())
    done = CliRunner().invoke(seeds, ["--results", str(copied)], catch_exceptions=False)
    assert done.exit_code == 0
    assert (copied / "seeds.md").read_bytes() == (RESULTS / "seeds.md").read_bytes()


def test_every_seed_has_rows_and_no_row_stands_twice() -> None:
    assert {row.seed for row in ROWS} == set(SEEDS) and {row.status for row in ROWS} <= set(
        STATUSES
    )
    assert len({titled(row) for row in ROWS}) == len(ROWS)
    assert [row.seed for row in ROWS] == sorted(row.seed for row in ROWS)


def test_every_page_and_anchor_that_a_row_names_is_there() -> None:
    for row in ROWS:
        for target in filter(None, (row.page, row.reason)):
            file, _, anchor = target.partition("#")
            path = (RESULTS / file).resolve()
            assert path.is_file(), titled(row)
            found = read_page(path.relative_to(ROOT).as_posix())
            assert not anchor or anchor in anchors(found), (titled(row), anchor)


def test_every_module_that_a_row_names_is_there() -> None:
    for name in {name for row in ROWS for name in row.code}:
        assert pkgutil.resolve_name(name), name


def test_every_command_and_option_that_a_row_names_is_there() -> None:
    for typed in {typed for row in ROWS for typed in row.commands}:
        first, *words = typed.split()
        command: click.Command = cli
        if words[0] == "lab":  # what plugins bring is loaded when it is called
            command, words = lab, words[1:]
        context = click.Context(command)
        context.meta["redhost.typed"] = words[0]  # loads a command of a plugin
        while words and isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found, typed
            command = found
        options = {o for p in command.params for o in p.opts}
        assert first == "redhost" and set(words) <= options, typed


def test_what_does_not_work_says_why() -> None:
    for row in ROWS:
        assert row.status == "works" or row.note, titled(row)
        assert row.status != "departs" or row.reason, titled(row)
        assert row.page or row.code or row.reason or row.status == "missing", titled(row)


def test_a_note_beside_figures_is_checked_against_them() -> None:
    for row in ROWS:
        assert row.checks or not (row.note and row.figures), titled(row)


def made(**changed: object) -> Row:
    """Return a row that says A, .75, is above B, .5, with changes."""
    fields = {
        "seed": "001",
        "section": "4",
        "claim": "is A | B?",
        "status": "works",
        "figures": [["A", "m.json", "a > 0"], ["B", "m.json", "b", ".1%"]],
        "note": "It is",
        "checks": [["A", ">", "B"], ["B", ">=", 0.5]],
    }
    return msgspec.convert(fields | changed, Row)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "m.json").write_text(json.dumps({"a": [0.75], "b": 0.5, "c": "no"}))
    return tmp_path


def test_figures_are_read_and_printed_as_wanted(results: Path) -> None:
    assert "| is A &#124; B? | works |  | A: 0.750; B: 50.0%. It is |" in page([made()], results)


@pytest.mark.parametrize(
    "figure", [["A", "gone.json", "a"], ["A", "m.json", "a > 1"], ["A", "m.json", "c"]]
)
def test_a_figure_that_is_gone_is_noticed(results: Path, figure: list[str]) -> None:
    with pytest.raises(redhost.MissingError, match=f"a number at .* of {figure[1]}"):
        page([made(figures=[figure], checks=[])], results)


@pytest.mark.parametrize("check", [["A", "<", "B"], ["B", "==", 0.4], ["A", "<=", 0.7]])
def test_a_note_that_is_no_longer_true_is_noticed(results: Path, check: list[object]) -> None:
    with pytest.raises(redhost.UsageError, match="what came out now"):
        page([made(checks=[check])], results)


def test_a_row_has_no_other_fields_and_no_other_status() -> None:
    for changed in (
        {"figure": 1},
        {"status": "nearly"},
        {"seed": "004"},
        {"checks": [["A", "~", 1]]},
    ):
        with pytest.raises(msgspec.ValidationError):
            made(**changed)
