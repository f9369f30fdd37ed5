"""An adapter as llama.cpp reads it: one GGUF file of A and B for each linear layer.

    W' = W + B A            llama.cpp, src/llama-adapter.h: an alpha of 0 leaves B A as it is

Every layer's scale is multiplied into its B, so that each may have its own. The file says which
expert it is, and of which package: `redhost gateway` finds it by that, and not by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from redhost.registry.errors import MissingError, UsageError

from .peft_adapter import Adapter

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["ARCHITECTURES", "task_name", "write_gguf"]

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""Type of a model in transformers → its architecture in llama.cpp."""

DIGITS = 12
"""Digits of a package's digest in an adapter's name."""

_INTERLEAVED = "llama"
"""The architecture whose files have the rows of q and k in another order: see `_interleaved`."""


def task_name(expert: str, digest: str) -> str:
    """Return what the file of an expert's adapter says that it is, with its package's digest."""
    return f"{expert}-{digest[:DIGITS]}"


def write_gguf(
    path: Path,
    adapter: Adapter,
    tensors: Mapping[str, Tensor],
    *,
    name: str,
    config: PretrainedConfig,
    prefix: str,
) -> None:
    """Write an adapter for ``llama-server --lora FILE``.

    Args:
        path: The file.
        adapter: The adapter.
        tensors: Its tensors, by the names in the adapter's file.
        name: What llama.cpp's server lists as its task, see `task_name`.
        config: The configuration of its backbone's model.
        prefix: The beginning of the adapter's module names that the backbone's lack.

    Raises:
        UsageError: If llama.cpp has no place for such an adapter, or for one of this model.
        MissingError: If the library `gguf` is not installed.
    """
    if find_spec("gguf") is None:
        raise MissingError("the module 'gguf' is not installed", hint="Run: pip install gguf")
    import gguf

    _check_plain(adapter, config)
    architecture = ARCHITECTURES[config.model_type]
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 0.0)
    writer.add_string(gguf.Keys.Adapter.LORA_TASK_NAME, name)
    for module, layer in adapter.layers.items():
        a, b = (tensors[adapter.tensors[module][role]].float() for role in ("A", "B"))
        b = b * layer.scale
        place = names.get_name(f"model.{module.removeprefix(prefix)}")
        if place is None:
            raise _misplaced(f"a layer of the architecture {architecture!r}", module)
        role = place.rpartition(".")[2]
        if architecture == _INTERLEAVED and role in heads:
            b = _interleaved(b, heads[role])
        writer.add_tensor(f"{place}.weight.lora_a", a.contiguous().numpy())
        writer.add_tensor(f"{place}.weight.lora_b", b.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(rows: Tensor, heads: int) -> Tensor:
    """Return the rows of q or k ``(out, R)`` in llama.cpp's order.

    transformers turns the dimensions i and i + d/2 of a head together, llama.cpp 2i and 2i + 1.
    """
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return halves.transpose(1, 2).reshape(rows.shape)


def _check_plain(adapter: Adapter, config: PretrainedConfig) -> None:
    if config.model_type not in ARCHITECTURES:
        raise _misplaced(f"a model of the type {', '.join(ARCHITECTURES)}", config.model_type)
    parts = {role for roles in adapter.tensors.values() for role in roles}
    if more := sorted({*(parts - {"A", "B"}), *adapter.saved}):
        raise _misplaced("the matrices A and B of linear layers alone", more[0])


def _misplaced(expected: str, found: str) -> UsageError:
    hint = "Try PEFT's files (--to peft) and llama.cpp's own convert_lora_to_gguf.py."
    return UsageError(
        "the adapter cannot be written for llama.cpp", expected=expected, found=found, hint=hint
    )
