"""A generation as an MLflow folder: a pyfunc that contains every byte of the generation."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from mlflow import pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from packaging.version import Version

import redhost
from redhost.plugins import Composition, Generations
from redhost_mlflow import model
from redhost_mlflow.model import TEXT, GenerationModel

__all__ = ["Export", "export_generation"]

EXAMPLES = 2
"""Number of texts in the input example."""

REQUIRED = ("redhost", "redhost-mlflow", "mlflow-skinny", "torch", "transformers")
"""Pinned requirements: same versions, so same bits. Plugins that provide a part are added."""

COMPOSITION = "composition.json"
"""The file of a generation that lists all others."""

NUMBER, DIGEST = "redhost_generation", "redhost_digest"
"""The names of a generation's number and digest in the model's metadata."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """The result of `export_generation`.

    Attributes:
        number: The generation.
        written: Whether the folder was written; if not, it already contained the generation.
    """

    number: int
    written: bool


def export_generation(host: redhost.Host, folder: Path, *, generation: int | None = None) -> Export:
    """Write a generation as a model of MLflow.

    Args:
        host: The host of the home that has it.
        folder: The folder to write: it must not exist, or contain the same generation.
        generation: Its number; None for the current one.

    Raises:
        MissingError: If nothing is composed.
        UnknownNameError: If there is no such generation.
        UsageError: If the folder contains something else, or the backbone generates text.
    """
    number = host.session.require_current() if generation is None else generation
    record = host.generations.load(number)
    if folder.exists():
        _require_same(folder, record)
        return Export(number=number, written=False)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written next to its target, and renamed once it is complete.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        home, made = Path(scratch, "home"), Path(scratch, "model")
        _copy(host.generations, record, home)
        _save(home, record, made)
        made.rename(folder)
    return Export(number=number, written=True)


def _require_same(folder: Path, record: Composition) -> None:
    try:
        found = Model.load(str(folder)).metadata or {}
    except Exception:  # any error of MLflow's: not a model
        found = {}
    if found.get(DIGEST) != record.digest:
        raise redhost.UsageError(
            f"{folder} is there already",
            expected=f"generation {record.number}, or nothing",
            found=f"generation {found[NUMBER]}" if NUMBER in found else "something else",
            hint="Name another folder, or remove it.",
        )


def _copy(generations: Generations, record: Composition, home: Path) -> None:
    """Make a home that contains one generation, and nothing else of the original home."""
    target = Generations(home)
    for digest in record.digests():
        target.store.put(generations.store.get(digest), digest=digest)
    files = {name: generations.file(record, name) for name in record.files}
    files[COMPOSITION] = generations.record(record.number)
    with target.writer() as writer:
        target.receive(record.number, files, writer=writer)
    target.rollback(record.number)


def _save(home: Path, record: Composition, folder: Path) -> None:
    """Let MLflow write the folder around a home."""
    host = redhost.Host.open(home)
    example = pd.DataFrame({TEXT: _texts(host.composed)})
    answered = GenerationModel(host).predict(example)
    inputs = Schema([ColSpec(DataType.string, TEXT)])
    pyfunc.save_model(
        folder,
        loader_module=model.__name__,
        data_path=home,
        signature=ModelSignature(inputs=inputs, outputs=_outputs(answered)),
        input_example=example,
        pip_requirements=[*map(_pinned, (*REQUIRED, *record.providers))],
        metadata={
            NUMBER: record.number,
            DIGEST: record.digest,
            "redhost_backbone": record.backbone.fingerprint,
            "redhost_experts": [member.id for member in record.experts],
        },
    )


def _outputs(answered: pd.DataFrame) -> Schema:
    """Return the columns of answers; numeric answers have no probability."""
    number = answered["answer"].dtype.kind == "f"
    return Schema(
        [
            ColSpec(DataType.double if number else DataType.string, "answer"),
            ColSpec(DataType.double, "probability", required=not number),
            ColSpec(DataType.string, "expert"),
            ColSpec(DataType.double, "weight"),
            ColSpec(DataType.boolean, "declined"),
        ]
    )


def _pinned(dist: str) -> str:
    """Return a requirement of the installed version, without its local build tag (``+cpu``)."""
    return f"{dist}=={Version(version(dist)).public}"


def _texts(composed: redhost.ComposedModel) -> list[str]:
    """Return some example texts of the backbone."""
    known = [*(r.text for r in composed.evaluation), *(r.text for r in composed.background)]
    return known[:EXAMPLES] or ["a text"]
