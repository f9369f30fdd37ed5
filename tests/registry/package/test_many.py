"""A thousand installed experts: what is opened, counted by the interpreter's own audit events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MANY = 1000

LISTED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from redhost.registry.queries.inventory import take_inventory
from pathlib import Path
statuses = take_inventory(Path(sys.argv[1])).statuses
mine = [x for x in opened if x.startswith(sys.argv[2])]
print(json.dumps({
    "listed": sum(x.package.dist.startswith("red-expert-many") for x in statuses),
    "opened": len(mine),
    "weights": sum(x.endswith(".safetensors") for x in mine),
    "memories": sum(x.endswith("verdicts.json") for x in opened),
    "twice": len(mine) - len(set(mine)),
}))
"""


def listed(site: Any, home: Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", LISTED, str(home), str(site.folder)],
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_a_thousand_experts_are_listed_from_four_small_files_each(site: Any, home: Path) -> None:
    """Entry points, METADATA, direct_url.json (which is not there) and the manifest, once each."""
    for number in range(MANY):
        site.expert(f"many{number}")
    home.mkdir()  # what was read is remembered in a home that is there
    time.sleep(0.15)  # a file is remembered once it is older than its clock is coarse
    first, again = listed(site, home), listed(site, home)
    assert first["listed"] == again["listed"] == MANY
    assert first["weights"] >= 2 * MANY  # control: with nothing remembered, everything is read
    assert (again["opened"], again["twice"]) == (4 * MANY, 0)
    assert (again["weights"], again["memories"]) == (0, 1)
