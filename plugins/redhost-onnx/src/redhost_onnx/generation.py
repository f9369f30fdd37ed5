"""A whole generation as one ONNX graph: token ids → answers, weights and declined texts."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor, nn

import redhost
from redhost_onnx.export import silent
from redhost_onnx.runtime import MODEL, RECORD, TOKENIZER, ExportedGeneration, Record

__all__ = ["TOLERANCE", "export_generation"]

TOLERANCE = 1e-4
"""Maximum deviation of a probability or a weight from torch's."""

TEXTS = 100
"""Maximum number of texts on which both are compared."""


@runtime_checkable
class OfTokens(Protocol):
    """What computes a segment of h̃ from a text, if a graph can compute it from the token ids.

    A form of a plugin that brings such a segment, and a router that reads it, are exported as torch
    traces them; under `torch.compiler.is_compiling` their shapes have to be fixed.
    """

    def of_tokens(self, ids: Tensor) -> Tensor:
        """Return the segment ``(W,)`` of all a text's ids ``(N,)``."""
        ...


def export_generation(model: redhost.ComposedModel, folder: Path) -> Record:
    """Write a composition as a folder that answers without torch.

    Nothing is written unless onnxruntime gives the same answers as torch.

    Args:
        model: The composition.
        folder: The folder to write; it must not exist yet.

    Raises:
        UsageError: If the composition cannot be exported, or the folder exists.
        PluginError: If the exported model gives other answers.
    """
    _require_exportable(model)
    if folder.exists():
        raise redhost.UsageError(
            f"{folder} is there already",
            expected="a folder that is yet to be made",
            found="a folder" if folder.is_dir() else "a file",
            hint="Name another, or remove it.",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written next to its target, and renamed once it is complete.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        where = Path(scratch)
        _export(model, where / MODEL)
        files = {MODEL: (where / MODEL).read_bytes(), TOKENIZER: _tokenizer(model)}
        record = Record(
            generation=model.generation,
            backbone=model.backbone.name,
            fingerprint=model.fingerprint,
            columns=model.bus.columns,
            labels=model.bus.labels,
            has_shared_labels=bool(model.bus.shared_labels),
            longest=model.backbone.trunk.longest,
            digests={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            texts=0,
            away=0.0,
        )
        texts = list(islice(dict.fromkeys(_texts(model)), TEXTS))
        made = where / "made"
        made.mkdir()
        for name, data in {**files, RECORD: msgspec.json.encode(record)}.items():
            (made / name).write_bytes(data)
        away = _compare(model, ExportedGeneration(made), texts)
        record = msgspec.structs.replace(record, texts=len(texts), away=away)
        written = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
        (made / RECORD).write_bytes(written)
        made.rename(folder)
    return record


def _require_exportable(model: redhost.ComposedModel) -> None:
    found = None
    if not all(isinstance(s.compute, OfTokens) for s in model.bus.layout.segments):
        found = "an expert that acts inside the encoder"
    elif model.backbone.task.name != "classification":
        found = f"a backbone whose task is {model.backbone.task.name}"
    elif _rust_tokenizer(model) is None:
        found = "a tokenizer in Python"
    if found is not None:
        raise redhost.UsageError(
            "this composition cannot be exported",
            expected="labels of texts, experts that read what the encoder puts out",
            found=found,
            hint="Serve it with 'redhost serve', which runs everything.",
        )


class _Generation(nn.Module):
    """Encoder, features and bus for one text."""

    def __init__(self, model: redhost.ComposedModel) -> None:
        super().__init__()
        bus, self.composed, self.trunk = model.bus, model, model.backbone.trunk
        self.encoder: nn.Module = self.trunk.model
        makers: list[object] = [s.compute for s in bus.layout.segments]
        self.segments: list[OfTokens] = [make for make in makers if isinstance(make, OfTokens)]
        norm: Any = bus.norm
        self.bus = redhost.Bus(
            bus.readout,
            norm=norm.norm if bus.layout.segments else norm,  # that of h alone
            layout=bus.layout,
            router=bus.router,
            experts=dict(zip(bus.ids, bus.parts(), strict=True)),
            backbone_column=len(bus.columns) > len(bus.ids),
            strategy="dense",  # the others choose experts at run time: not a single graph
        )

    def forward(self, ids: Tensor, whole: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return p ``(1, L)``, α ``(1, K)`` and whether the text is declined ``(1,)``.

        Args:
            ids: The token ids that the blocks read, ``(1, T)``.
            whole: All token ids of the text, ``(1, N)``, if tokens are hashed or words read.
        """
        features = self.trunk.features
        output = self.encoder(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            output_hidden_states=features is not None,
            use_cache=False,
        )
        if features is None:
            h = self.trunk.pool(output.last_hidden_state)
        else:
            states = [output.hidden_states[n] for n in features.layers]
            h = self.trunk.pool(torch.cat(states, dim=-1))
            if whole is not None and self.trunk.hashing is not None:
                s = _hashed(whole[0], self.trunk.hashing)  # the last entries of h, zero so far
                h = h + nn.functional.pad(s, (self.trunk.width - s.shape[0], 0))
        if whole is not None:
            h = torch.cat([h, *(part.of_tokens(whole[0])[None] for part in self.segments)], dim=1)
        p, alpha = self.bus(h)
        return p, alpha, self.composed.declines(h, p, alpha)


def _hashed(ids: Tensor, hashing: Any) -> Tensor:
    """Return LN(s) ``(W,)`` of a text's ids ``(N,)``, s = Σ_v (1 + ln n_v) e_v.

    Each of the n_v occurrences of token v adds its share, so no list of distinct tokens is needed.
    """
    each = torch.ones_like(ids, dtype=torch.float)  # a Python length would become a constant
    counts = torch.zeros(len(hashing.places)).scatter_add(0, ids, each)[ids]
    entries = hashing.signs[ids] * ((1 + counts.log()) / counts)[:, None]
    s = torch.zeros(hashing.width)
    s = s.scatter_add(0, hashing.places[ids].flatten(), entries.flatten())
    return nn.functional.layer_norm(s, (hashing.width,))


def _export(model: redhost.ComposedModel, path: Path) -> None:
    """Write the graph, simplified in advance so that loading is faster."""
    trunk = model.backbone.trunk
    lengths = {"ids": (17, trunk.longest or 2**20)}
    if trunk.hashing is not None or model.bus.layout.segments:
        lengths["whole"] = (23, 2**24)
    vocabulary = int(trunk.model.config.vocab_size)
    example = tuple(torch.arange(some)[None] % vocabulary for some, _ in lengths.values())
    shapes = [
        {1: torch.export.Dim(f"{n}_tokens", min=2, max=most)} for n, (_, most) in lengths.items()
    ]
    plain = path.with_name("plain.onnx")
    _ = model.decline_thresholds  # computed before it is traced, where numbers are not known
    with trunk.lock, torch.no_grad(), silent():
        torch.onnx.export(
            _Generation(model).eval(),
            example,
            plain,
            input_names=list(lengths),
            output_names=["p", "weights", "declined"],
            dynamo=True,
            dynamic_shapes=tuple(shapes),
            external_data=False,
            verbose=False,
        )
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    # No optimisations for this processor only: the folder may be copied to another machine.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    runtime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])


def _rust_tokenizer(model: redhost.ComposedModel) -> Any:
    """Return the Rust tokenizer inside transformers' own, or inside the packaged one, if any."""
    outer = model.backbone.trunk.tokenizer
    return getattr(outer, "backend_tokenizer", None) or getattr(outer, "tokenizer", None)


def _tokenizer(model: redhost.ComposedModel) -> bytes:
    tokenizers: Any = import_module("tokenizers")
    with model.backbone.trunk.lock:
        written: str = _rust_tokenizer(model).to_str()
    own = tokenizers.Tokenizer.from_str(written)
    own.no_padding()
    own.no_truncation()
    return str(own.to_str()).encode()


def _texts(model: redhost.ComposedModel) -> Iterator[str]:
    """Yield texts to compare: a too long one, a short one, known rows, random known words."""
    cards = (r.text for c in model.cards.values() for r in c.rows)
    known = [*(r.text for r in model.evaluation), *cards, *(r.text for r in model.background)]
    yield " ".join(known[:200])
    yield "1"
    yield from known[:: max(1, len(known) // TEXTS)]
    words, draw = " ".join(known).split() or ["1"], random.Random(0)  # noqa: S311  (no secret)
    for count in range(2, 2 + TEXTS):  # for packages with vectors and sums, but no texts
        yield " ".join(draw.choices(words, k=count))


def _compare(model: redhost.ComposedModel, exported: ExportedGeneration, texts: list[str]) -> float:
    """Return the largest difference of a probability or weight.

    Raises:
        PluginError: If it is too large, or an answer differs.
    """
    worst = 0.0
    for text, answer in zip(texts, model.answer(texts), strict=True):
        p, alpha, declined, cut = exported.outputs(text)
        h = model.features([text])
        with torch.inference_mode():
            expected, weights = model.bus(h)
        both = ((expected[0], p), (weights[0], alpha))
        away = max(float((torch.from_numpy(found) - own).abs().max()) for own, found in both)
        worst = max(worst, away)
        if not away <= TOLERANCE or (declined, cut) != (answer.declined, answer.cut):
            raise redhost.errors.PluginError(
                "what was exported does not answer as the composition does",
                expected=f"probabilities within {TOLERANCE:g} ({text[:40]!r})",
                found=f"{away:.3g}, declined {declined}, cut {cut}",
                hint="Report the backbone and the router.",
            )
    return worst
