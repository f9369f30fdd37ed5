"""vLLM's server with LoRA adapters, as a system of `redhost lab decoding`.

It runs in a process of its own, from wherever `vllm` is on the PATH, with its own defaults but for
what makes it the same computation: floats of 32 bits, and no text read before.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Any, TextIO

from redhost.registry.errors import MissingError
from redhost_generate.engine_client import EngineClient

__all__ = ["is_installed", "vllm"]

TEXTS, CONTEXT = 32, 128
"""Texts at once, and the most tokens of each with its prompt."""

STARTING = 600.0
"""Seconds until it answers: it may compile the model first."""

FLAGS = (
    *("--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(TEXTS)),
    *("--no-enable-prefix-caching", "--gpu-memory-utilization", "0.1"),  # of any processor's memory
)
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


def is_installed() -> bool:
    """Return whether a command `vllm` is on the PATH."""
    return which("vllm") is not None


@contextmanager
def vllm(
    model: Path, adapters: Mapping[str, Path], *, rank: int, threads: int
) -> Iterator[EngineClient]:
    """Run a server with adapters.

    Args:
        model: The model's folder.
        adapters: The folder of each adapter, as PEFT writes it, by name.
        rank: The highest rank of the adapters.
        threads: Its threads.

    Raises:
        MissingError: If it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    lora = ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(len(adapters))]
    lora += ["--lora-modules", *(f"{name}={folder}" for name, folder in adapters.items())]
    command = [which("vllm") or "vllm", "serve", str(model), "--port", str(port), *FLAGS, *lora]
    log = (model.parent / "vllm.log").open("w+", encoding="utf-8")
    server = subprocess.Popen(  # noqa: S603  (what the PATH names)
        command,
        env={**os.environ, **SETTINGS, "OMP_NUM_THREADS": str(threads)},
        stdout=log,
        stderr=log,
        start_new_session=True,  # so that its workers can be ended with it
    )
    try:
        _wait(server, port, log)
        yield EngineClient(f"http://127.0.0.1:{port}", _request)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def _request(ids: Sequence[int], name: str, tokens: int) -> dict[str, Any]:
    return {
        "model": name,
        "prompt": [*ids],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }


def _wait(server: subprocess.Popen[bytes], port: int, log: TextIO) -> None:
    """Return when a server answers.

    Raises:
        MissingError: If it ends before, or takes too long.
    """
    end = time.monotonic() + STARTING
    while not _answers(port):
        if server.poll() is not None or time.monotonic() > end:
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()]
            found = lines[-1] if lines else "no word from it"
            raise MissingError("vLLM did not start", expected="an answer", found=found)
        time.sleep(0.2)


def _answers(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
