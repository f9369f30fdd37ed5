"""Which test files take longest, from a junit file: `pytest --junitxml=FILE`, then this."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

LIMIT = 10.0
"""Seconds within which a test file should be done."""

SHOWN = 10
"""Files that are listed in any case."""


def seconds_by_file(report: Path) -> dict[str, float]:
    """Sum what the tests of each file took, their fixtures included."""
    seconds = defaultdict[str, float](float)
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314  (pytest wrote it)
        module = re.match(r"(?:\w+\.)*?test_\w+", case.get("classname", ""))
        name = f"{module[0].replace('.', '/')}.py" if module else "elsewhere"
        seconds[name] += float(case.get("time", "0"))
    return seconds


def lines(seconds: Mapping[str, float]) -> list[str]:
    """Return a line for each of the dearest files and all above the limit, and a last one."""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    over = sum(spent > LIMIT for _, spent in ordered)
    listed = [f"{spent:7.1f} s  {name}" for name, spent in ordered[: max(SHOWN, over)]]
    total = f"{sum(seconds.values()):.0f} s in {len(seconds)} files"
    return [*listed, f"{total}, of which {over} are over {LIMIT:.0f} s"]


if __name__ == "__main__":
    print("\n".join(lines(seconds_by_file(Path(sys.argv[1])))))
