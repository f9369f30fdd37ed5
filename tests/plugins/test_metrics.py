"""What a study measured, as files; every committed page and figure is that of its metrics."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
from pages.page import archived_at
from red_lab.metrics import cached_json, read_metrics, write_json, write_results

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGES = {
    "adapters": "red_lab.adapters",
    "cost": "red_lab.cost",
    "decoding": "redhost_generate.study:STUDY",
    "fleet": "redhost_fleet.study.report",
    "generative": "red_lab.generative",
    "hotswap": "red_lab.hotswap",
    "kills": "kills.report",
    "matched": "red_lab.matched:STUDY",
    "mutants": "mutants.report",
    "red": "red_lab.red.report",
    "robust": "red_lab.robust:STUDY",
    "text": "red_lab.text:STUDY",
    "tiny-ranges": "red_lab.results",
    "toy": "red_lab.toy",
}
"""The folder of a study's results → the module, or the study, that writes its page."""

DRAWN = {
    "matched": "red_lab.matched",
    "red": "red_lab.red.report",
    "robust": "red_lab.robust",
}

ELSEWHERE = {"bench", "gateway", "install", "mutation", "serve"}
"""Written by commands that have tests of their own."""


def study(folder: Path) -> str:
    return folder.relative_to(RESULTS).parts[0]


MEASURED = [path.parent for path in sorted(RESULTS.rglob("metrics.json"))]
ARCHIVED = [folder for folder in MEASURED if archived_at(folder)]
"""Records of studies whose commands are gone: compared with nothing."""

FOLDERS = [
    folder for folder in MEASURED if folder not in ARCHIVED and study(folder) not in ELSEWHERE
]


def test_every_study_with_results_is_named_here() -> None:
    assert {study(folder) for folder in FOLDERS} == PAGES.keys() >= DRAWN.keys()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.relative_to(RESULTS).as_posix())
def test_a_page_and_its_figures_are_those_of_the_metrics(folder, tmp_path) -> None:
    metrics = read_metrics(folder)
    again = write_json(metrics, tmp_path / "again" / "metrics.json", sort_keys=False)
    assert again.read_bytes() == (folder / "metrics.json").read_bytes()
    text = (folder / "README.md").read_text("utf-8")
    assert text == resolve_name(PAGES[study(folder)]).page(metrics)
    for picture in re.findall(r"\]\(([\w-]+\.svg)\)", text):
        assert (folder / picture).exists()
    if study(folder) in DRAWN:
        import_module(DRAWN[study(folder)]).draw(metrics, tmp_path)
        for drawn in tmp_path.glob("*.*"):
            assert drawn.read_bytes() == (folder / drawn.name).read_bytes(), drawn.name


def shifted(found: object) -> object:
    """The same with every fraction a tenth smaller."""
    if isinstance(found, dict):
        return {key: shifted(value) for key, value in found.items()}
    if isinstance(found, list):
        return [shifted(value) for value in found]
    return 0.9 * found if isinstance(found, float) else found


@pytest.mark.parametrize("name", PAGES)
def test_other_numbers_are_another_page(name) -> None:
    folder = next(f for f in FOLDERS if study(f) == name)
    text = resolve_name(PAGES[name]).page(shifted(read_metrics(folder)))
    assert text != (folder / "README.md").read_text("utf-8")


def test_what_is_made_once_is_read_from_then_on(tmp_path) -> None:
    made = iter([{"right": 0.5}, None])
    file = tmp_path / "one.json"
    assert cached_json(file, lambda: next(made)) == {"right": 0.5}
    assert cached_json(file, lambda: next(made)) == {"right": 0.5}
    assert [p.name for p in tmp_path.iterdir()] == ["one.json"]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path) -> None:
    path = write_json({"b": 1, "a": 2}, tmp_path / "deep" / "metrics.json")
    assert list(json.loads(path.read_text("utf-8"))) == ["a", "b"]
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            write_json({"right": bad}, path)
    assert read_metrics(path.parent) == {"a": 2, "b": 1}
    assert read_metrics(tmp_path) == {}


def test_a_page_is_made_from_what_the_file_says(tmp_path) -> None:
    """A tuple is a list there, and a key a text: a page made of it later must be the same."""

    def draw(metrics: object, folder: Path) -> None:
        (folder / "drawn").write_text(str(metrics))

    write_results({"z": (1, 2), "a": {3: 4}}, tmp_path, page=str, draw=draw, sort_keys=False)
    written = "{'z': [1, 2], 'a': {'3': 4}}"
    assert {(tmp_path / name).read_text("utf-8") for name in ("README.md", "drawn")} == {written}
