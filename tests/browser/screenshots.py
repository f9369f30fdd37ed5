"""Take the screenshots of the docs: ``python tests/browser/screenshots.py docs/images``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from stage import chromium, site

SHOTS = {
    "page-light": ("light", 1000, 900),
    "page-dark": ("dark", 1000, 900),
    "page-phone": ("light", 390, 844),
}


def main(out: Path) -> None:
    """Write one picture a shot."""
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        site(Path(folder, "home")) as url,
        sync_playwright() as playwright,
    ):
        browser = chromium(playwright)
        for name, (scheme, width, height) in SHOTS.items():
            page = browser.new_page(
                color_scheme=scheme, viewport={"width": width, "height": height}
            )
            page.goto(url)
            page.wait_for_selector("#experts tr")
            page.get_by_label("A text to answer").fill("What is 37 plus 12?")
            page.get_by_role("button", name="Ask").click()
            page.wait_for_selector("#weights li")
            page.screenshot(path=out / f"{name}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
