"""The trial of a backbone package that was just written, from its own bytes, in two processes.

The package is opened as hosts open it, here and in a fresh process, which sees the texts in another
order. Its h is compared with a plain pass of transformers over the model's source.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any, Self, cast

import torch
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.encoder import TextEncoder
from redhost.core.model.build import make_backbone, read_package
from redhost.core.plugins.manager import Plugins
from redhost.registry.environment import python_command
from redhost.registry.errors import PluginError, RedhostError
from redhost.registry.package.discover import from_folder
from redhost_author.backbone.repeatable import (
    encoded_alone,
    refused,
    require_equal,
    require_repeatable,
    trial_texts,
)

TOLERANCE = 1e-4
"""Largest distance of a row from the plain pass's, relative to its norm; 3e-6 is usual."""

MODULE = "redhost_author.backbone.trial"


class BackboneTrial:
    """Tries packages, with one process beside this one for all of them.

    Use it as a context manager, or let `new_backbone` start one for its package.
    """

    def __enter__(self) -> Self:
        self._other = subprocess.Popen(  # noqa: S603  (this very Python)
            python_command("-m", MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,  # Ctrl-C reaches the starting process only
        )
        self._pipes = cast("IO[str]", self._other.stdin), cast("IO[str]", self._other.stdout)
        self._number = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._other.kill()
        self._other.wait()
        for pipe in self._pipes:
            with suppress(BrokenPipeError):
                pipe.close()

    def run(self, package: Path, source: Backbone) -> None:
        """Try a written package.

        Args:
            package: Its folder.
            source: The backbone it was made from, as transformers loaded it.

        Raises:
            BackboneMismatchError: If the package is not what its manifest says.
            UsageError: If it fails at a text, its numbers are not those of the source, or a text's
                bits depend on other texts or on the process.
        """
        question = self._ask(package, task=source.task.name)
        backbone = _opened(package)
        name, computed = backbone.name, list[tuple[TextEncoder, list[str], Tensor]]()
        for trunk in _readings(backbone.trunk):
            texts, h = require_repeatable(trunk, name=name)
            counted = 0 if trunk.hashing is None else trunk.hashing.width
            states, expected = (
                rows[:, : trunk.width - counted]
                for rows in (h, plain_rows(source.trunk, trunk, texts))
            )
            distance = (states - expected).norm(dim=1) / expected.norm(dim=1)
            worst = float(distance.max())
            if not worst <= TOLERANCE:  # also true for NaN
                raise refused(
                    trunk,
                    name,
                    f"h within {TOLERANCE:g} of a plain pass of transformers",
                    f"{worst:.3g} of its norm",
                )
            computed.append((trunk, texts, h))
        answer = self._answer(question)
        if "error" in answer:
            raise refused(backbone.trunk, name, "the same h in a fresh process", answer["error"])
        if answer["rows"] is None:
            return
        for (trunk, texts, h), theirs in zip(computed, answer["rows"], strict=True):
            require_equal(trunk, texts, _digest(h), torch.tensor(theirs), name=name)

    def _ask(self, package: Path, *, task: str) -> int:
        """Ask the other process to try a package as well; return the question's number."""
        self._number += 1
        settings: dict[str, Any] = {"package": str(package.resolve()), "task": task}
        settings["threads"] = torch.get_num_threads()
        with suppress(BrokenPipeError):  # it has ended, and `_answer` says so
            self._pipes[0].write(json.dumps({"number": self._number, **settings}) + "\n")
            self._pipes[0].flush()
        return self._number

    def _answer(self, number: int) -> dict[str, Any]:
        """Return the answer to a question; those to earlier ones were not waited for."""
        for line in self._pipes[1]:
            answer: dict[str, Any] = json.loads(line)
            if answer["number"] == number:
                return answer
        return {"error": "the process ended"}


def plain_rows(source: TextEncoder, trunk: TextEncoder, texts: Sequence[str]) -> Tensor:
    """Return h ``(N, D)``, zeros for hashed tokens, by plain passes of a model, text by text.

    Args:
        source: The encoder whose model and tokenizer are used.
        trunk: The encoder whose pooling, features and limit are used.
        texts: N texts.
    """
    model: Any = source.model
    rows = []
    for text in texts:
        ids = torch.tensor([source.tokenizer(text, **trunk.cut)["input_ids"]])
        with torch.no_grad():
            output = model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                output_hidden_states=trunk.features is not None,
            )
            rows.append(trunk.pool(trunk.read(output)))
    return torch.cat(rows)


def _opened(package: Path) -> Backbone:
    return make_backbone(
        read_package(from_folder(package)), plugins=Plugins(), providers={}, device="cpu"
    )


def _readings(trunk: TextEncoder) -> list[TextEncoder]:
    """Return an encoder and, if it reads more than its last states, one that reads these."""
    last = TextEncoder(
        model=trunk.model,
        tokenizer=trunk.tokenizer,
        pooling=trunk.pooling,
        max_tokens=trunk.max_tokens,
        stated=trunk.stated,
    )
    return [trunk] if trunk.features is None else [trunk, last]


def _digest(h: Tensor) -> Tensor:
    """Return the sha256 of every row's bytes ``(N, 32)``."""
    rows = h.contiguous().view(torch.uint8).numpy()
    return torch.tensor([list(hashlib.sha256(row.tobytes()).digest()) for row in rows])


def _reply(question: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(int(question["threads"]))
    try:
        Plugins().task(question["task"])
    except PluginError:  # only the asking process has imported it
        return {"number": question["number"], "rows": None}
    try:
        trunk = _opened(Path(question["package"])).trunk
        rows = [
            _digest(encoded_alone(each, trial_texts(each), name="")).tolist()
            for each in _readings(trunk)
        ]
    except RedhostError as e:
        return {"number": question["number"], "error": str(e)}
    return {"number": question["number"], "rows": rows}


def _main() -> None:
    """Answer one question a line: the digests of a package's h, each text alone."""
    from transformers import AutoModel, AutoTokenizer  # noqa: F401  (before the first question)

    out = sys.stdout
    with redirect_stdout(io.StringIO()):
        for line in sys.stdin:
            out.write(json.dumps(_reply(json.loads(line))) + "\n")
            out.flush()


if __name__ == "__main__":
    _main()
