"""llama.cpp's server with LoRA adapters, as a system of `redhost lab decoding`.

    python -m redhost_generate.llama_cpp MODEL THREADS ADAPTER …

It runs in a process of its own, by xllamacpp: its OpenMP would take threads from torch's. Its
attention is the exact one, and its weights are the same floats as ours, or the four bits that the
model is shipped in.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO, cast

from redhost.registry.environment import python_command
from redhost.registry.errors import MissingError
from redhost_generate.engine_client import EngineClient

__all__ = ["llama_cpp", "write_floats"]

TEXTS, CONTEXT = 32, 128
"""Texts at once, and the most tokens of each with its prompt."""


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


@contextmanager
def llama_cpp(model: Path, adapters: Mapping[str, Path], *, threads: int) -> Iterator[EngineClient]:
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

    def request(ids: Sequence[int], name: str, tokens: int) -> dict[str, Any]:
        return {
            "prompt": [*ids],
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "lora": [{"id": n, "scale": float(a == name)} for n, a in enumerate(adapters)],
        }

    command = python_command("-m", __name__, str(model), str(threads))
    with subprocess.Popen(  # noqa: S603  (this interpreter)
        [*command, *map(str, adapters.values())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            yield EngineClient(cast("TextIO", server.stdout).readline().strip(), request)
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
