"""llama.cpp's server with LoRA adapters, as a system of `redhost lab decoding`.

    python -m redhost_generate.llama_cpp MODEL THREADS ADAPTER …

It runs in a process of its own, by xllamacpp: its OpenMP would take threads from torch's. Its
attention is the exact one, and its weights are the same floats as ours, or the four bits that the
model is shipped in.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO, cast
from urllib.parse import urlsplit

from redhost.registry.environment import python_command
from redhost.registry.errors import MissingError

__all__ = ["LlamaCpp", "llama_cpp", "write_floats"]

TEXTS, CONTEXT = 32, 128
"""Texts at once, and the most tokens of each with its prompt."""

DATA = b"data: {"
"""The beginning of an event of a stream that is no end."""


def write_floats(source: Path, path: Path) -> None:
    """Write a GGUF file again with its matrices in float32."""
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in {"general.architecture", "general.file_type"}:
            continue
        element = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """A server of llama.cpp with adapters.

    Args:
        address: Its URL.
        adapters: The names of its adapters, in its order.
    """

    def __init__(self, address: str, adapters: Sequence[str]) -> None:
        self.place, self.adapters = urlsplit(address).netloc, tuple(adapters)

    def generate(
        self, prompts: Sequence[Sequence[int]], names: Sequence[str], *, tokens: int
    ) -> tuple[list[str], float, float]:
        """Continue texts at the same time, each with its adapter.

        Args:
            prompts: Tokens of the prompts.
            names: The adapter of each.
            tokens: Tokens of each text.

        Returns:
            The texts, the seconds until all have their first token, and until all have the last.
        """
        begin = time.perf_counter()

        def one(ids: Sequence[int], name: str) -> tuple[str, float]:
            parts, first = list[str](), 0.0
            for part in self._stream(ids, name, tokens):
                first = first or time.perf_counter() - begin
                parts.append(part)
            return "".join(parts), first

        with ThreadPoolExecutor(len(prompts)) as pool:
            texts, firsts = zip(*pool.map(one, prompts, names), strict=True)
        return [*texts], max(firsts), time.perf_counter() - begin

    def _stream(self, ids: Sequence[int], name: str, tokens: int) -> Iterator[str]:
        """Yield the parts of a text."""
        request = {
            "prompt": [*ids],
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "lora": [{"id": n, "scale": float(a == name)} for n, a in enumerate(self.adapters)],
        }
        connection = http.client.HTTPConnection(self.place)
        connection.request("POST", "/v1/completions", json.dumps(request))
        for line in connection.getresponse():
            if line.startswith(DATA):
                yield json.loads(line[len(DATA) - 1 :])["choices"][0]["text"]
        connection.close()


@contextmanager
def llama_cpp(model: Path, adapters: Mapping[str, Path], *, threads: int) -> Iterator[LlamaCpp]:
    """Run a server with adapters.

    Args:
        model: The GGUF file of the model.
        adapters: The GGUF file of each adapter, by name.
        threads: Its threads.

    Raises:
        MissingError: If xllamacpp, which contains the server, is not installed.
    """
    if find_spec("xllamacpp") is None:
        hint = "Run: pip install xllamacpp"
        raise MissingError("the module 'xllamacpp' is not installed", hint=hint)
    command = python_command("-m", __name__, str(model), str(threads))
    with subprocess.Popen(  # noqa: S603  (this interpreter)
        [*command, *map(str, adapters.values())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            yield LlamaCpp(cast("TextIO", server.stdout).readline().strip(), [*adapters])
        finally:
            cast("TextIO", server.stdin).close()


def main(model: str, threads: str, *adapters: str) -> None:
    """Serve on a free port, whose address is printed, until standard input ends."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path, options.port = model, 0
    options.n_ctx, options.n_parallel = TEXTS * CONTEXT, TEXTS
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = int(threads)
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.warmup, options.lora_init_without_apply = False, True
    options.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in adapters]
    server = xllamacpp.Server(options)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
