"""The section `files` of the bench: rows that are counted, a real process killed, its page."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from red_lab.bench.files.drive import drive
from red_lab.bench.files.page import aims, page
from red_lab.bench.files.rows import lost_and_doubled, texts_of, write_rows
from red_lab.bench.processes import REDHOST

import redhost
from redhost.commands.files import PART
from redhost.core.training.rows import read_cells

TEXTS = list(texts_of("tiny", 3 * PART + 5))


def run(backbone: str, form: str, rows: int) -> dict[str, Any]:
    spread = {"median": 2.0, "low": 2.0, "high": 2.0}
    times = {"ratio": 1.0, "low": 1.0, "high": 1.0}
    bare = {"part_seconds": spread, "times": times, "parts": 40}
    return {
        "backbone": backbone,
        "format": form,
        "rows": rows,
        "seconds": 2.0 * rows / 1024,
        "peak": 2**30,
        "kills": 5 * (rows == 1000),
        **dict.fromkeys(("lost", "doubled", "other"), 0),
        "part_seconds": spread,
        "bare": {"transformers": bare} if rows > 10 else {},
    }


@pytest.fixture
def found() -> dict[str, Any]:
    """What a machine might find that meets every aim."""
    kinds = [("minilm", ".csv"), ("tiny", ".jsonl")]
    runs = [run(backbone, form, rows) for backbone, form in kinds for rows in (10, 100, 1000)]
    return {"rows": 1000, "threads": 1, "part": 1024, "runs": runs}


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_rows_come_back_from_every_format(tmp_path, suffix: str) -> None:
    write_rows(tmp_path / f"rows{suffix}", TEXTS)
    cells = [cells for _, cells in read_cells(tmp_path / f"rows{suffix}")]
    assert lost_and_doubled(cells, TEXTS) == (0, 0, 0)
    assert lost_and_doubled([cells[1], cells[1], {"id": 2, "text": "else"}], TEXTS[:4]) == (2, 1, 1)


def test_there_are_as_many_texts_as_are_wanted() -> None:
    assert len(TEXTS) == 3 * PART + 5 and TEXTS[0] == TEXTS[2500] != TEXTS[1]


# -- a process -------------------------------------------------------------------------------------


def test_a_process_is_stopped_and_killed_and_the_section_itself_goes_on(tmp_path) -> None:
    home, source, target = tmp_path / "home", tmp_path / "in.csv", tmp_path / "out.csv"
    with redhost.Host.open(home) as host:
        host.recompose()
    write_rows(source, TEXTS)
    encoded = list[int]()

    def encode(part: int) -> float:
        encoded.append(part)
        if len(encoded) == 1:
            raise KeyboardInterrupt  # as who stops the section
        return 0.5

    given: dict[str, Any] = {"bare": {"bare": encode}, "stops": range(2, 4), "kills": [3]}
    given["command"] = [*REDHOST, "predict", "--home", home, "--in", source, "--out", target]
    with pytest.raises(KeyboardInterrupt):
        drive(target=target, **given)
    assert not target.exists() and (tmp_path / "out.csv.parts").is_dir()
    driven = drive(target=target, **given)
    assert set(driven.kills) <= {3} and driven.peak > 2**27 and driven.seconds > 1
    assert json.loads((tmp_path / "driven.json").read_text("ascii"))["seconds"] == driven.seconds
    assert lost_and_doubled((cells for _, cells in read_cells(target)), TEXTS) == (0, 0, 0)


def test_a_command_that_fails_says_why(tmp_path) -> None:
    command = [*REDHOST, "predict", "--in", str(tmp_path / "none.csv")]
    with pytest.raises(RuntimeError, match=r"none\.csv"):
        drive(command, tmp_path / "out.csv", bare={}, stops=(), kills=())


# -- the page --------------------------------------------------------------------------------------


def test_the_page_has_every_run_and_no_ratio_that_was_not_measured(found) -> None:
    rows = [
        line for line in page(found).splitlines() if line.startswith(("| minilm |", "| tiny |"))
    ]
    assert len(rows) == 6 and all(line.count("|") == 12 for line in rows)
    assert rows[0].endswith("| 1,024 |  |  |  |  |")
    assert rows[2].endswith("| 512 | 1.00 (1.00–1.00) |  | 1.00 |")
    assert "missed" not in page(found)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("lost",), 1),
        (("doubled",), 1),
        (("other",), 1),
        (("peak",), 1.2 * 2**30),
        (("bare", "transformers", "times", "ratio"), 1.11),
    ],
)
def test_each_aim_can_be_missed(found, place: tuple[str, ...], value: float) -> None:
    assert all(met for _, _, met in aims(found))
    worse = copy.deepcopy(found)
    cell = worse["runs"][2]
    for key in place[:-1]:
        cell = cell[key]
    cell[place[-1]] = value
    assert [met for _, _, met in aims(worse)].count(False) == 1
    assert page(worse).count("**missed**") == 1
