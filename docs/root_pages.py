"""Show files of the root as pages of the site; links in them start from the root."""

import re
from pathlib import Path
from typing import Any

FILES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "index.md": "README.md",
}
"""Page → the file that it shows."""

ELSEWHERE = re.compile(r"(?<!!)\[([^]]+)\]\((?!docs/|https?:|#)[\w./]+/[\w./]*\)")
"""A link to a file that is no page of the site: its text stays."""

POLICY = re.compile(r"\[([^]]+)\]\((?:\.\./)?SECURITY\.md\)")
"""A link to the policy, which the hosting site shows; its text stays."""


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return what a page is made of: its own text, or the file that it shows."""
    file = FILES.get(page.file.src_uri)
    if file is None:
        return POLICY.sub(r"\1", markdown)
    text = Path(config.config_file_path).with_name(file).read_text("utf-8")
    text = POLICY.sub(r"\1", ELSEWHERE.sub(r"\1", text))
    for name, shown in FILES.items():
        text = text.replace(f"]({shown}", f"]({name}")
    return text.replace("](docs/", "](")
