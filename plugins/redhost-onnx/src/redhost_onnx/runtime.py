"""The runtime of an exported generation: onnxruntime and a tokenizer, no torch.

Its folder contains three files: `MODEL`, from token ids to answers; `TOKENIZER`; and `RECORD`, with
their origin and their digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import redhost

__all__ = ["MODEL", "RECORD", "TOKENIZER", "ExportedAnswer", "ExportedGeneration", "Record"]

MODEL, TOKENIZER, RECORD = "model.onnx", "tokenizer.json", "generation.json"

SCHEMA = "redhost-onnx.generation/1"

NONE = "none"
"""The label of a declined text."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of an exported generation.

    Attributes:
        generation: Its number in the home that it comes from.
        backbone: The backbone's name.
        fingerprint: The backbone's fingerprint.
        columns: The router's columns.
        labels: The label space.
        has_shared_labels: Whether declining is not an output of its own, the first label, empty.
        longest: Maximum length of a text in tokens; None for no limit.
        digests: SHA-256 of the other files.
        texts: Number of texts on which torch and onnxruntime were compared.
        away: The largest difference of a probability or weight among them.
        schema: The format's name.
    """

    generation: int | None
    backbone: str
    fingerprint: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    has_shared_labels: bool
    longest: int | None
    digests: dict[str, str]
    texts: int
    away: float
    schema: str = SCHEMA


class ExportedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one text: the fields of `redhost.Answer` that an export supports.

    Attributes:
        input: The text.
        label: The most probable label, or ``none``.
        probability: Its probability, 0–1.
        weights: α by column.
        generation: The generation that answered.
        cut: Number of tokens that were read if the text was truncated; None if all were.
        declined: Whether the text is declined as outside every expert's domain.
    """

    input: str
    label: str
    probability: float
    weights: dict[str, float]
    generation: int | None
    cut: int | None
    declined: bool


class ExportedGeneration:
    """An exported generation; its files are checked against their digests when opened.

    Args:
        folder: The folder of the export.
        threads: Threads of a pass; 0 for onnxruntime's default.

    Raises:
        MissingError: If there is none.
        UsageError: If a file differs from the one that was written.
    """

    def __init__(self, folder: Path, *, threads: int = 0) -> None:
        self.record, files = _read(folder)
        tokenizers: Any = import_module("tokenizers")
        self.tokenizer = tokenizers.Tokenizer.from_str(files[TOKENIZER].decode())
        runtime: Any = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors
        # The graph was simplified at export: doing it again takes half a second.
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = runtime.InferenceSession(
            files[MODEL], options, providers=["CPUExecutionProvider"]
        )

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The model's inputs: token ids, and those of the whole text if it hashes tokens."""
        return frozenset(x.name for x in self.session.get_inputs())

    def answer(self, texts: str | Iterable[str]) -> list[ExportedAnswer]:
        """Answer one text, or texts one by one in the order given."""
        return [self._answer(text) for text in ([texts] if isinstance(texts, str) else texts)]

    def outputs(self, text: str) -> tuple[Any, Any, bool, int | None]:
        """Return p ``(L,)``, α ``(K,)``, whether it is declined, and the length if truncated."""
        ids = self._ids(text, longest=self.record.longest)
        whole = self._ids(text, longest=None)
        given = {"ids": ids, "whole": whole}
        p, alpha, declined = self.session.run(
            None, {n: np.array([given[n]], dtype=np.int64) for n in self.inputs}
        )
        return p[0], alpha[0], bool(declined[0]), len(ids) if len(ids) < len(whole) else None

    def _answer(self, text: str) -> ExportedAnswer:
        p, alpha, declined, cut = self.outputs(text)
        record, best = self.record, int(p.argmax())
        label, probability = record.labels[best] or NONE, float(p[best])
        if declined:
            label, probability = NONE, 0.0 if record.has_shared_labels else float(p[0])
        return ExportedAnswer(
            input=text,
            label=label,
            probability=probability,
            weights=dict(zip(record.columns, map(float, alpha), strict=True)),
            generation=record.generation,
            cut=cut,
            declined=declined,
        )

    def _ids(self, text: str, *, longest: int | None) -> Sequence[int]:
        if longest is None:
            self.tokenizer.no_truncation()
        else:
            self.tokenizer.enable_truncation(longest)
        ids: Sequence[int] = self.tokenizer.encode(text).ids
        if not ids:
            raise redhost.UsageError(
                "a text has no tokens", expected="at least one", found=repr(text)
            )
        return ids


def _read(folder: Path) -> tuple[Record, dict[str, bytes]]:
    path = folder / RECORD
    try:
        data = path.read_bytes()
    except OSError as e:
        raise redhost.MissingError(
            f"{folder} holds no exported generation",
            expected=f"a folder with {RECORD}",
            found=e.strerror or "nothing that can be read",
            hint="Write one with 'redhost onnx export FOLDER'.",
        ) from e
    try:
        record = msgspec.json.decode(data, type=Record)
    except msgspec.DecodeError as e:
        raise redhost.UsageError(
            f"{path} is not a record of an exported generation",
            expected=SCHEMA,
            found=str(e),
            hint="Export the generation again.",
        ) from e
    files = {}
    for name in (MODEL, TOKENIZER):
        try:
            files[name] = (folder / name).read_bytes()
        except OSError as e:
            raise redhost.MissingError(f"{folder} has no {name}", found=e.strerror or "") from e
        digest = hashlib.sha256(files[name]).hexdigest()
        if digest != record.digests.get(name):
            raise redhost.UsageError(
                f"{folder / name} is not the file that was exported",
                expected=f"SHA-256 {record.digests.get(name, 'in its record')}",
                found=digest,
                hint="Export the generation again.",
            )
    return record, files
