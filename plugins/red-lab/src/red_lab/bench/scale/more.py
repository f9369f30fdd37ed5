"""Add one expert to a host of a thousand, and remove it: seconds, and changes to the others.

``python -m red_lab.bench.scale.more ID HOME FILE LEVEL`` with the expert's site on the path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal, cast

import torch

import redhost
from red_lab.bench.scale.point import Stopwatch, test_rows, top_answers

__all__ = ["main"]


def main(expert_id: str, home: Path, file: Path, level: Literal["row", "full"]) -> None:
    """Attach an expert and roll back; write the measurements."""
    host = redhost.Host.open(home)
    count = len(host.composed.bus.ids)
    rows, watch = test_rows(count), Stopwatch()
    before = top_answers(host, rows)
    with watch("attach"):
        attached = host.attach(expert_id, level=level)
    with_it = top_answers(host, rows)
    with watch("rollback"):
        host.rollback()
    file.write_text(
        json.dumps(
            {
                "level": attached.router.level,
                "experts": len(attached.experts),
                "moved": len(attached.router.moved),
                "seconds": watch.wall,
                "cpu": watch.cpu,
                "steps": attached.steps,
                "same_labels": float((before[:, 1] == with_it[:, 1]).double().mean()),
                "back_again": bool(torch.equal(before, top_answers(host, rows))),
            }
        )
    )


if __name__ == "__main__":
    main(
        sys.argv[1],
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        cast("Literal['row', 'full']", sys.argv[4]),
    )
