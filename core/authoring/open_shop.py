"""Open a backbone for an author: the installed one, or a package's folder."""

from __future__ import annotations

from pathlib import Path

from ...registry.discover import discover, from_folder
from ...registry.files import BackboneFiles
from ...registry.settings import choose_backbone, resolve_home
from ..composing.workspace import cached, read_package
from ..extending.assemble import background_of, make_backbone
from ..extending.plugins import Plugins
from ..progress import Progress
from .shop import Shop

__all__ = ["installed_shop", "open_shop"]


def installed_shop(
    home: Path | None,
    *,
    backbone: str | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Shop:
    """Open the installed backbone for an author, with the feature cache of a home.

    Args:
        home: The state folder; by default ``REDHOST_HOME`` or ``.redhost``.
        backbone: Which backbone, when several are installed.
        device: Where the trunk runs.
        progress: Called with (texts encoded, texts to encode).
    """
    return _shop(
        read_package(choose_backbone(discover("backbone"), backbone)),
        cache=resolve_home(home) / "cache" / "features",
        device=device or "cpu",
        progress=progress,
    )


def open_shop(folder: Path, *, cache: Path | None = None, device: str = "cpu") -> Shop:
    """Open a backbone package's folder for an author.

    Args:
        folder: The package's folder.
        cache: Where features are remembered; None keeps nothing.
        device: Where the trunk runs.
    """
    files = read_package(from_folder(folder))
    return _shop(files, cache=cache, device=device, progress=None)


def _shop(
    files: BackboneFiles, *, cache: Path | None, device: str, progress: Progress | None
) -> Shop:
    made = make_backbone(files, plugins=Plugins(), providers={}, device=device)
    return Shop(
        backbone=made,
        manifest=files.manifest,
        background=background_of(files),
        encode=cached(made, files.manifest.fingerprint, cache, progress),
    )
