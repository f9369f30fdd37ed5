"""``python -m reference FOLDER``: write the pages there."""

from __future__ import annotations

import sys
from pathlib import Path

from . import PAGES

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), "utf-8")
