"""Show files of the root as pages of the site; links in them start from the root."""

from pathlib import Path
from typing import Any

FILES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Page → the file that it shows."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return what a page is made of: its own text, or the file that it shows."""
    file = FILES.get(page.file.src_uri)
    if file is None:
        return markdown
    text = Path(config.config_file_path).with_name(file).read_text("utf-8")
    for name, shown in FILES.items():
        text = text.replace(f"]({shown}", f"]({name}")
    return text.replace("](docs/", "](")
