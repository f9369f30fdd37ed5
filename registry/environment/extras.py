"""How to install another part of this project, by where this redhost came from."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .trust import project_of


def how_to_install(extra: str) -> str:
    """Return the sentence that says how to install the plugin ``redhost-EXTRA``.

    A clone has its folder, and a wheel's folder its wheel, and perhaps constraints by which pip
    takes it from no index; otherwise pip takes it from an index.
    """
    if folder := project_of(f"redhost-{extra}"):
        return f"Run: pip install -e {shlex.quote(str(folder))}"
    wheels = _folder_of_wheel()
    places = ((wheels / "constraints.txt", "-c"), (wheels, "--find-links")) if wheels else ()
    links = next((f"{option} {shlex.quote(str(at))} " for at, option in places if at.exists()), "")
    return f"Run: pip install {links}'redhost[{extra}]'"


def how_to_get_expert(backbone: str | None) -> str:
    """Return the command that brings an expert for a backbone; those that ship are the demo's."""
    return {
        None: "pip install red-backbone-tiny red-expert-range3",
        "tiny": "pip install red-expert-range3",
    }.get(backbone, "redhost new-expert NAME")


def _folder_of_wheel() -> Path | None:
    """Return the folder that pip installed redhost's own wheel from, if it is still there."""
    try:
        recorded = metadata.distribution("redhost").read_text("direct_url.json")
        url = urlsplit(json.loads(recorded or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    folder = Path(unquote(url.path)).parent
    return (
        folder if url.scheme == "file" and url.path.endswith(".whl") and folder.is_dir() else None
    )
