"""The dearest test files, from a report that pytest writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dearest

SLOW = """
import time, pytest

@pytest.fixture
def slow():
    time.sleep(0.1)

def test_1(slow):
    pass

class TestOf:
    def test_2(self, slow):
        pass
"""


def test_a_files_tests_are_summed_with_their_fixtures_in_classes_too(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "test_a.py").write_text(SLOW)
    (folder / "test_b.py").write_text("def test_3():\n    pass\n")
    options = ("--junitxml=report.xml", "-p", "no:cacheprovider", "--disable-plugin-autoload")
    subprocess.run([sys.executable, "-m", "pytest", "-q", *options], check=True, cwd=tmp_path)
    seconds = dearest.seconds_by_file(tmp_path / "report.xml")
    assert set(seconds) == {"tests/test_a.py", "tests/test_b.py"}
    assert seconds["tests/test_a.py"] >= 0.2  # both waited


def test_all_over_the_limit_are_listed_and_ten_in_any_case() -> None:
    few = {f"tests/test_{n}.py": float(n) for n in range(1, 13)}
    listed = dearest.lines(few)
    assert [line.split()[2] for line in listed[:2]] == ["tests/test_12.py", "tests/test_11.py"]
    assert (len(listed), listed[-1]) == (11, "78 s in 12 files, of which 2 are over 10 s")
    assert len(dearest.lines({f"tests/test_{n}.py": 11.0 for n in range(12)})) == 13
