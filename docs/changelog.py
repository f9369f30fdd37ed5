"""Put CHANGELOG.md where the site's page of that name is; its links start from the root."""

from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return what a page is made of: its own text, but for the changelog."""
    if page.file.src_uri != "changelog.md":
        return markdown
    text = Path(config.config_file_path).with_name("CHANGELOG.md").read_text("utf-8")
    return text.replace("](docs/", "](")
