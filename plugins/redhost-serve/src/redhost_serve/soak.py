"""The soak test: many answers while experts are added and removed, and the server's memory."""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redhost
from redhost_serve.client import Client, Reply
from redhost_serve.process import ServerProcess, compose_home, serving

__all__ = ["measure", "soak"]

BATCH = 64
"""Texts in a request, the maximum allowed."""

POINTS = 20
"""How often memory is read during the test."""

Progress = Callable[[int, int], None]
"""Called with the number of answers so far and in total."""


def measure(*, answers: int, changes: int, progress: Progress) -> dict[str, Any]:
    """Run a server on the shipped packages for a number of answers and changes.

    Args:
        answers: Number of texts to answer.
        changes: Number of times an expert is detached or attached, evenly spread.
        progress: Called after every request.
    """
    with tempfile.TemporaryDirectory() as folder:
        home, secret = Path(folder, "home"), Path(folder, "token")
        token = secrets.token_hex(32)
        secret.touch(0o600)
        secret.write_text(token, "utf-8")
        host = compose_home(home)
        texts, ids = [row.text for row in host.composed.evaluation], host.composed.bus.ids
        log = Path(folder, "log")  # a line for each change
        with serving(home, "--admin-token", str(secret), log=log) as process:
            return soak(
                process,
                texts,
                ids,
                token=token,
                answers=answers,
                changes=changes,
                progress=progress,
            )


def soak(
    process: ServerProcess,
    texts: Sequence[str],
    ids: Sequence[str],
    *,
    token: str,
    answers: int,
    changes: int,
    progress: Progress,
) -> dict[str, Any]:
    """Alternate requests and changes; read the memory repeatedly.

    Args:
        process: The server.
        texts: The texts to send, in turn.
        ids: The experts to detach and attach again, in turn.
        token: The secret that allows changes.
        answers: Number of texts to answer.
        changes: Number of detaches and attaches among them.
        progress: Called after every request.

    Raises:
        PluginError: If the server refuses anything.
    """
    requests, questions, points = (
        -(-answers // BATCH),
        itertools.cycle(texts),
        list[dict[str, int]](),
    )
    done, turns = 0, _turns(ids)
    with Client(process.url, token=token) as client:
        for n in range(requests):
            if n * POINTS // requests != (n - 1) * POINTS // requests:
                points.append({"answers": n * BATCH, "changes": done, "memory": process.memory()})
            _held(client.infer(list(itertools.islice(questions, BATCH))))
            while done < (n + 1) * changes // requests:
                change, expert = next(turns)
                source = {"source": expert} if change == "attach" else {"id": expert}
                _held(client.post(f"/admin/{change}", source))
                done += 1
            progress((n + 1) * BATCH, requests * BATCH)
        points.append({"answers": requests * BATCH, "changes": done, "memory": process.memory()})
    # The memory that the first round of changes takes stays in use: growth is counted from there.
    settled = points[1]["memory"]
    return {"points": points, "growth": points[-1]["memory"] / settled - 1}


def _turns(ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the detach and attach of each expert in turn, endlessly."""
    for expert in itertools.cycle(ids):
        yield "detach", expert
        yield "attach", expert


def _held(reply: Reply) -> None:
    if reply.status != 200:  # noqa: PLR2004
        raise redhost.errors.PluginError(
            "the server refused what a soak asks", expected="200", found=f"{reply.status}"
        )
