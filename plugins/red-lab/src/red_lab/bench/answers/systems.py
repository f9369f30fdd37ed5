"""The compared systems, and the calls that are timed; each opens a subject and answers texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.bench.answers.subject import (
    ENGINES,
    HEAD_ROWS,
    MAX_TOKENS,
    Subject,
    pick,
    training_rows,
)
from red_lab.bench.rounds import peak_bytes
from redhost.core.backbones.bfloat16 import BF16

__all__ = [
    "FLOOR",
    "LARGE",
    "SYSTEMS",
    "WORDLESS",
    "Answering",
    "Case",
    "cases",
    "memory",
    "works",
]

Answering = Callable[[Sequence[str]], object]

BATCH = 32
"""Batch size of systems that split long lists: sentence-transformers' default."""

FLOOR, WORDLESS = "transformers, padded", "redhost, no words"
LARGE = (
    "sentence-transformers",
    f"sentence-transformers, {BF16}",
    "onnxruntime",
    "redhost",
    WORDLESS,
    *(f"redhost, {device}" for device in ENGINES),
)
"""Systems that sort many texts by length; one padded batch in the given order is mostly padding."""


PIECES = 5
"""Calls into which the largest case is split: each has its own ratio."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call that is timed.

    Attributes:
        kind: The texts, ``lines`` or ``posts``.
        size: Texts of a call.
        rounds: Number of counted calls.
        large: Whether it measures throughput instead of latency.
    """

    kind: str
    size: int
    rounds: int
    large: bool = False

    @property
    def name(self) -> str:
        """Its name on the page."""
        size = self.size * self.rounds if self.large else self.size
        return f"{size:,} {self.kind if size > 1 else self.kind.removesuffix('s')}"


def cases(*, runs: int, texts: int, posts: int) -> list[Case]:
    """Return the cases of a backbone.

    Args:
        runs: Rounds of the cases in the middle; short ones have more, for their 99th percentile.
        texts: Lines of the largest case.
        posts: Posts of a batch call.
    """
    return [
        Case(kind="lines", size=1, rounds=20 * runs),
        Case(kind="posts", size=1, rounds=2 * runs),
        Case(kind="lines", size=8, rounds=2 * runs),
        Case(kind="lines", size=64, rounds=runs),
        Case(kind="posts", size=posts, rounds=-(-runs // 2)),
        Case(kind="lines", size=-(-texts // PIECES), rounds=PIECES, large=True),
    ]


def works(case: Case, texts: Sequence[str]) -> list[Sequence[str]]:
    """Return the texts of each call, disjoint while there are enough; the first call warms up."""
    warm = min(case.size, 64)
    starts = (warm + n * case.size for n in range(case.rounds))
    return [
        texts[:warm],
        *([texts[(s + i) % len(texts)] for i in range(case.size)] for s in starts),
    ]


def _transformers(subject: Subject, dtype: torch.dtype = torch.float32) -> Answering:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(subject.model)
    model: Any = AutoModel.from_pretrained(subject.model, dtype=dtype).eval()

    def encode(texts: Sequence[str]) -> Tensor:
        with torch.inference_mode():
            filled = tokenizer(
                list(texts),
                padding=True,
                truncation=True,
                max_length=MAX_TOKENS,
                return_tensors="pt",
            )
            ids, mask = filled["input_ids"], filled["attention_mask"]
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
            keep = mask[..., None]
            h: Tensor = (hidden * keep).sum(1) / keep.sum(1)
        return h

    return encode


def _sentence_transformers(
    subject: Subject, dtype: torch.dtype = torch.float32
) -> Callable[[Sequence[str]], Any]:
    library: Any = import_module("sentence_transformers")
    encoder = library.SentenceTransformer(
        str(subject.model), device="cpu", model_kwargs={"dtype": dtype}
    )
    encoder.max_seq_length = MAX_TOKENS

    def encode(texts: Sequence[str]) -> Any:
        return encoder.encode(list(texts), batch_size=BATCH, show_progress_bar=False)

    return encode


def _logistic(subject: Subject) -> Answering:
    library: Any = import_module("sklearn.linear_model")
    encode, rows = _sentence_transformers(subject), training_rows(HEAD_ROWS)
    head = library.LogisticRegression(max_iter=1000)
    head.fit(encode([r.text for r in rows]), [r.label for r in rows])
    return lambda texts: head.predict_proba(encode(texts))


def _onnxruntime(subject: Subject) -> Answering:
    from transformers import AutoTokenizer

    library: Any = import_module("onnxruntime")
    options = library.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
    session = library.InferenceSession(subject.onnx, options, providers=["CPUExecutionProvider"])
    tokenizer = AutoTokenizer.from_pretrained(subject.model)

    def encode(texts: Sequence[str]) -> list[Any]:
        shortest_first = sorted(texts, key=len)
        found = []
        for start in range(0, len(texts), BATCH):
            filled = tokenizer(
                shortest_first[start : start + BATCH],
                padding=True,
                truncation=True,
                max_length=MAX_TOKENS,
                return_tensors="np",
            )
            names = ("input_ids", "attention_mask")
            found.append(session.run(None, {name: filled[name] for name in names})[0])
        return found

    return encode


def _redhost(subject: Subject, form: str | None = None) -> Answering:
    return redhost.Host.open(subject.homes[form]).predict


def _redhost_on(device: str, subject: Subject) -> Answering:
    with subject.host(device) as host:
        host.predict(["loaded now"])
    return host.predict


SYSTEMS: Mapping[str, Callable[[Subject], Answering]] = {
    FLOOR: _transformers,
    f"{FLOOR}, {BF16}": partial(_transformers, dtype=torch.bfloat16),
    "sentence-transformers": _sentence_transformers,
    f"sentence-transformers, {BF16}": partial(_sentence_transformers, dtype=torch.bfloat16),
    "onnxruntime": _onnxruntime,
    "redhost": _redhost,
    WORDLESS: partial(_redhost, form="linear"),
    **{f"redhost, {device}": partial(_redhost_on, device) for device in ENGINES},
    "sentence-transformers, logistic head": _logistic,
}


def memory(*, folder: str, name: str, system: str, texts: int) -> dict[str, Any]:
    """Let one system answer lines in one call, and one post; return the process's peak memory.

    Args:
        folder: The folder of the subjects.
        name: The backbone's name.
        system: The system's name.
        texts: Number of lines.
    """
    torch.set_num_threads(1)
    answer = SYSTEMS[system](Subject.under(Path(folder), name))
    answer(pick("posts")[:1])
    chosen = pick("lines")[:texts]
    step = len(chosen) if system in LARGE else BATCH
    for start in range(0, len(chosen), step):
        answer(chosen[start : start + step])
    return {"peak_bytes": peak_bytes()}
