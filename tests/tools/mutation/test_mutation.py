"""`make mutate` on a project of two functions: what is counted, reported, and tried again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mutation
import mutation_report
import pytest

ROOT = Path(__file__).parents[3]

CODE = """
def clipped(x, most):
    return most if x > most else x


def unseen(x):
    return x + 1
"""

TEST = """
from pkg.room.calc import clipped

def test_less_is_left_alone():
    assert clipped(1, 3) == 1
"""

SEEN = """
    from pkg.room.calc import unseen

    assert unseen(1) == 2
"""

MORE = """
def test_more_is_cut():
    assert clipped(4, 3) == 3
"""

DESELECTED = """
def test_that_no_mutated_code_passes():
    raise AssertionError
"""

WORDS = """
[[survivor]]
file = "room/calc.py"
function = "clipped"
after = ["return most if x >= most else x"]
word = "equivalent: both are most"
"""

SETTINGS = """
[tool.mutation.one]
mutate = ["room/*.py"]
tests = ["tests"]
deselect = ["tests/test_calc.py::test_that_no_mutated_code_passes"]

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package whose code lies elsewhere, behind a link, as ours does."""
    for name, text in {
        "src/pkg/__init__.py": "",
        "room/__init__.py": "",
        "room/calc.py": CODE,
        "tests/test_calc.py": TEST + DESELECTED,
        "pyproject.toml": SETTINGS,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "src/pkg/room").symlink_to("../../room")
    return tmp_path


def page(folder: Path) -> str:
    return (folder / "README.md").read_text("utf-8")


def test_what_gets_away_is_reported_and_tried_again_with_new_tests(project: Path) -> None:
    mutation.main(["--root", str(project), "--report"])
    folder = project / "docs/results/mutation"
    assert "Not measured yet: `room/__init__.py`, `room/calc.py`." in page(folder)
    mutation.main(["--root", str(project)])
    first = json.loads((folder / "metrics.json").read_text())
    calc = first["files"]["room/calc.py"]
    assert calc == {"killed": 1, "survived": 2, "no tests": 2}  # the last are all of `unseen`
    assert first["files"]["room/__init__.py"] == {}  # nothing to break
    survivors = {(s["function"], s["after"], s["word"]) for s in first["survivors"]}
    assert ("clipped", "return most if x >= most else x", "boundary") in survivors
    assert ("unseen", "return x - 1", "no test runs it") in survivors
    assert "**20.0% of 5 measured mutants are detected**" in page(folder)
    assert "| `return most if x >= most else x` | boundary |" in page(folder)

    (project / "tools").mkdir()
    (project / "tools/survivors.toml").write_text(WORDS)
    mutation.main(["--root", str(project), "--report"])
    assert "| `return most if x >= most else x` | equivalent: both are most |" in page(folder)
    assert "1 are equivalent" in page(folder) and "**25.0%**" in page(folder)  # one of four

    test = project / "tests/test_calc.py"
    test.write_text(TEST + SEEN + MORE + "    assert clipped(True, 1) is True\n")
    mutation.main(["--root", str(project)])
    again = json.loads((folder / "metrics.json").read_text())["files"]["room/calc.py"]
    assert again == {"killed": 5}


def test_a_sample_is_drawn_by_the_seed_and_is_all_that_counts(project: Path) -> None:
    (project / "tests/test_calc.py").write_text(TEST + DESELECTED + MORE)
    folder = project / "docs/results/mutation"
    found = []
    for extra in ([], ["--sample", "3"], ["--sample", "3"]):
        mutation.main(["--root", str(project), *extra])
        found.append(json.loads((folder / "metrics.json").read_text()))
    whole, first, again = found
    assert whole["sampled"] == [] and sum(whole["files"]["room/calc.py"].values()) == 5
    assert first == again and first["sampled"] == ["room/__init__.py", "room/calc.py"]
    counts = first["files"]["room/calc.py"]
    assert counts["not checked"] == 2 and sum(counts.values()) == 5
    assert "a random sample of 3 of 5 mutants was tested" in page(folder)
    assert "fast ones come first" not in page(folder)
    mutation.main(["--root", str(project)])
    assert json.loads((folder / "metrics.json").read_text()) == whole


def test_words_of_a_line_go_before_those_of_a_function(tmp_path: Path) -> None:
    path = tmp_path / "survivors.toml"
    rest = '[[survivor]]\nfile = "room/calc.py"\nfunction = "clipped"\nword = "the rest"\n'
    path.write_text(WORDS + rest)
    line = "return most if x >= most else x"
    assert mutation_report.read_words(path) == {
        ("room/calc.py", "clipped", line): "equivalent: both are most",
        ("room/calc.py", "clipped", ""): "the rest",
    }
    assert mutation_report.read_words(tmp_path / "none.toml") == {}


def test_earlier_figures_stay_and_the_page_names_what_changed_since(project: Path) -> None:
    mutation.main(["--root", str(project)])
    folder = project / "docs/results/mutation"
    whole = json.loads((folder / "metrics.json").read_text())
    assert whole["changed"] == [] and whole["sources"].keys() == whole["files"].keys()
    shutil.rmtree(project / "build")
    mutation.main(["--root", str(project), "--report"])
    assert json.loads((folder / "metrics.json").read_text()) == whole
    with (project / "room/calc.py").open("a") as file:
        file.write('\n"""More words, and no more code."""  # of which no mutant is made\n')
    mutation.main(["--root", str(project), "--report"])
    assert json.loads((folder / "metrics.json").read_text()) == whole
    with (project / "room/calc.py").open("a") as file:
        file.write("\n\ndef more(x):\n    return x - 1\n")
    mutation.main(["--root", str(project), "--report"])
    again = json.loads((folder / "metrics.json").read_text())
    assert again == {**whole, "changed": ["room/calc.py"]}
    assert "Changed since they were measured: `room/calc.py`." in page(folder)


def test_a_room_that_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(SystemExit, match="no room two; there are one"):
        mutation.main(["two", "--root", str(project)])


def test_equal_files_keep_their_time_and_stale_ones_go(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "a.py").write_text("1")
    (source / "b.py").write_text("2")
    assert mutation.mirror([source], target)
    before = (target / "a.py").stat().st_mtime_ns
    (source / "b.py").unlink()
    assert mutation.mirror([source], target) and not mutation.mirror([source], target)
    assert [p.name for p in target.iterdir()] == ["a.py"]
    assert (target / "a.py").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ('raise X("no such digest")', 'raise X("XXno such digestXX")', "wording"),
        ("a = f(x, y)", "a = f(x, )", "left out"),
        ("a = f(x)", "a = None", "None"),
        ("if x < 3:", "if x <= 3:", "boundary"),
        ("n = x[0]", "n = x[1]", "number"),
        ("if a and b:", "if a or b:", "logic"),
        ("if a == b:", "if a != b:", "equality"),
        ("n = a + b", "n = a - b", "arithmetic"),
        ("continue", "break", "other"),
    ],
)
def test_a_word_for_each_change(before: str, after: str, word: str) -> None:
    assert mutation_report.word_for(before, after) == word


def test_the_share_leaves_out_what_was_not_measured() -> None:
    assert (
        mutation_report.score({"killed": 6, "timeout": 1, "survived": 1, "not checked": 9}) == 7 / 8
    )
    assert mutation_report.score({"not checked": 9}) is None


def test_every_room_of_ours_names_files_and_tests_that_are_there() -> None:
    for room in mutation.read_rooms(ROOT):
        own = room.package == "redhost"
        folder = ROOT / ("src/redhost" if own else f"plugins/{room.package.replace('_', '-')}/src")
        assert room.mutate and all((folder / name).is_file() for name in room.mutate)
        assert all((ROOT / name).exists() for name in room.tests)


def test_every_kind_of_router_has_a_room() -> None:
    named = [name for room in mutation.read_rooms(ROOT) for name in room.mutate]
    kinds = {f"core/routers/{path.name}" for path in (ROOT / "core/routers").glob("*.py")}
    assert kinds <= {*named} and len(named) == len({*named})


def test_our_page_says_what_was_measured(tmp_path: Path) -> None:
    results = ROOT / "docs/results/mutation"
    metrics = json.loads((results / "metrics.json").read_text("utf-8"))
    mutation_report.write_page(metrics, tmp_path / "README.md")
    assert page(tmp_path) == page(results)


def test_each_of_our_survivors_has_a_word_written_by_hand() -> None:
    words = mutation_report.read_words(ROOT / "tools/survivors.toml")
    metrics = json.loads((ROOT / "docs/results/mutation/metrics.json").read_text("utf-8"))
    survivors = {(s["file"], s["function"], s["after"]) for s in metrics["survivors"]}
    assert [(f, n, a) for f, n, a in survivors if not {(f, n, a), (f, n, "")} & words.keys()] == []
    whole = {f for f, found in metrics["files"].items() if found and "not checked" not in found}
    # Nothing is excused that is gone; of what was not tried nobody knows.
    assert {key for key in words if key[2] and key[0] in whole} - survivors == set()
