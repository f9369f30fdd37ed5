"""llama.cpp's server with LoRA adapters, as a system of `redhost lab decoding`.

It runs in this process, by xllamacpp, with as many threads as torch has. Its attention is the exact
one, and its weights are the same floats as ours, or the four bits that the model is shipped in.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["LlamaCpp", "write_floats"]

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


class LlamaCpp:
    """A server of llama.cpp with adapters.

    Args:
        model: The GGUF file of the model.
        adapters: The GGUF file of each adapter, by name.
        threads: Its threads.
    """

    def __init__(self, model: Path, adapters: Mapping[str, Path], *, threads: int) -> None:
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path = str(model)
        options.n_ctx, options.n_parallel = TEXTS * CONTEXT, TEXTS
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.warmup, options.verbosity = False, -1
        options.lora_init_without_apply = True
        options.lora_adapters = [
            xllamacpp.CommonAdapterLoraInfo(str(path), 1.0) for path in adapters.values()
        ]
        self.names = tuple(adapters)
        self.server: Any = xllamacpp.Server(options)

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
        begin, first = time.perf_counter(), list[float]()

        def one(ids: Sequence[int], name: str) -> str:
            parts = list[str]()

            def note(piece: Mapping[str, Any]) -> None:
                if not parts:
                    first.append(time.perf_counter() - begin)
                parts.append(piece["choices"][0]["text"])

            scales = [{"id": n, "scale": float(a == name)} for n, a in enumerate(self.names)]
            request = {
                "prompt": [*ids],
                "n_predict": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
                "stream": True,
                "lora": scales,
            }
            self.server.handle_completions(request, note)
            return "".join(parts)

        with ThreadPoolExecutor(len(prompts)) as pool:
            texts = [*pool.map(one, prompts, names)]
        return texts, max(first), time.perf_counter() - begin
