"""Take the pictures of the docs: ``python tests/browser/screenshots.py docs/images``."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from stage import chromium, site

from redhost.testing import Environment

SHOTS = {
    "page-light": ("light", 1000, 900),
    "page-dark": ("dark", 1000, 900),
    "page-phone": ("light", 390, 844),
}
TEXTS = {
    "greeting": ["hello", "good morning", "hey there"],
    "farewell": ["goodbye", "see you", "good night"],
    "thanks": ["thank you", "many thanks", "cheers"],
}
"""What the tutorial's expert learns."""


def main(out: Path) -> None:
    """Write one picture a shot, one of an answer, one of the tutorial's, and the figure."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder, browser = Path(temporary), chromium(playwright)
        with site(folder / "home") as url:
            for name, (scheme, width, height) in SHOTS.items():
                page = ask(browser, url, "What is 37 plus 12?", scheme, width, height)
                page.screenshot(path=out / f"{name}.png", full_page=True)
            page = ask(browser, url, "What is 37 plus 12?", "light", 820, 844)
            page.locator("section").first.screenshot(path=out / "answer.png")
        figure = ["--mixtures", "--plot", str(out / "mixtures.svg")]
        redhost(folder, "evaluate", "--home", str(folder / "home"), *figure)
        install_tutorial(folder)
        with site(folder / "tutorial") as url:
            page = ask(browser, url, "good morning anna 7", "light", 820, 844)
            page.locator("section").first.screenshot(path=out / "tutorial.png")
        browser.close()


def ask(browser: Browser, url: str, text: str, scheme: str, width: int, height: int) -> Page:
    """Open the page of a server and ask; return it with the answer."""
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
    page.goto(url)
    page.wait_for_selector("#experts tr")
    page.get_by_label("A text to answer").fill(text)
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector("#weights li")
    return page


def install_tutorial(folder: Path) -> None:
    """Make the tutorial's expert with the tutorial's commands, and install it."""
    chance = random.Random(0)
    with (folder / "smalltalk.jsonl").open("w") as file:
        for n in range(600):
            label = chance.choice(sorted(TEXTS))
            text = f"{chance.choice(TEXTS[label])} {chance.choice(['bob', 'anna', 'team'])} {n}"
            file.write(json.dumps({"text": text, "label": label}) + "\n")
    redhost(folder, "new-expert", "smalltalk", "--backbone", "tiny")
    redhost(folder, "train-expert", "red-expert-smalltalk", "--data", "smalltalk.jsonl")
    installed = folder / "site"
    installed.mkdir()
    Environment(installed).install(folder / "red-expert-smalltalk")
    sys.path.insert(0, str(installed))


def redhost(folder: Path, *words: str) -> None:
    """Run a command in a folder."""
    command = [sys.executable, "-m", "redhost", *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
