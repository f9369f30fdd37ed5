"""Adapters as llama.cpp reads them; `test_llama_cpp.py` of the gateway has the engine itself."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_models import permuted
from peft import LoraConfig, get_peft_model
from redhost_peft.gguf_adapter import ARCHITECTURES, write_gguf
from redhost_peft.peft_adapter import CONFIG, WEIGHTS, read_adapter
from safetensors.torch import load
from transformers import AutoConfig, AutoModelForCausalLM

from redhost.registry.errors import UsageError

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OPTIONS: dict[str, Any] = {
    "r": 4,
    "lora_alpha": 6,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"],
    "rank_pattern": {"o_proj": 2},
    "alpha_pattern": {"down_proj": 20},
}


def saved(folder: Path, kind: str, **options: Any) -> Any:
    """Save an adapter of a small model by PEFT, and return the model with it."""
    sizes = SIZES if kind != "gpt2" else {"n_embd": 16, "n_layer": 2, "n_head": 2}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks transformers what it will no longer say
        made = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
        with torch.no_grad():
            for name, p in made.named_parameters():
                if "lora_" in name:
                    p.add_(0.1 * torch.randn_like(p))
        made.save_pretrained(folder)
    return made


def written(folder: Path, made: Any) -> dict[str, Any]:
    """Write the adapter of a folder as GGUF; return its tensors by name."""
    adapter = read_adapter(*((folder / n).read_bytes() for n in (CONFIG, WEIGHTS))).unwrap("it")
    tensors = load((folder / WEIGHTS).read_bytes())
    path = folder / "it.gguf"
    write_gguf(path, adapter, tensors, name="it-012345678901", config=made.config, prefix="model.")
    return {t.name: np.array(t.data) for t in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("use_rslora", [False, True])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_each_layers_product_is_pefts_change_with_its_scale(kind, use_rslora, tmp_path) -> None:
    made = saved(tmp_path, kind, use_rslora=use_rslora, **OPTIONS)
    found = written(tmp_path, made)
    changes = {
        "attn_q": ("self_attn.q_proj", 4),
        "attn_k": ("self_attn.k_proj", 2),
        "attn_v": ("self_attn.v_proj", None),
        "attn_output": ("self_attn.o_proj", None),
        "ffn_down": ("mlp.down_proj", None),
    }
    assert len(found) == 2 * 2 * len(changes)
    for n, layer in enumerate(made.base_model.model.model.layers):
        for name, (module, heads) in changes.items():
            a, b = (found[f"blk.{n}.{name}.weight.lora_{part}"] for part in "ab")
            assert a.shape[0] == b.shape[1] == (2 if name == "attn_output" else 4)
            change = layer.get_submodule(module).get_delta_weight("default").detach().numpy()
            if heads and kind in {"llama", "mistral"}:
                change = permuted(change, heads)
            assert np.abs(b @ a - change).max() < 1e-6
            assert np.abs(change).max() > 1e-3  # control


def test_the_file_says_what_it_is(tmp_path) -> None:
    written(tmp_path, saved(tmp_path, "qwen3", **OPTIONS))
    fields = gguf.GGUFReader(tmp_path / "it.gguf").fields
    values = {key: f.contents() for key, f in fields.items() if not key.startswith("GGUF.")}
    assert values == {
        "general.architecture": "qwen3",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 0.0,
        "adapter.lora.task_name": "it-012345678901",
    }


@pytest.mark.parametrize(
    ("kind", "options", "found"),
    [
        ("qwen3", {"use_dora": True}, "m"),
        ("qwen3", {"lora_bias": True}, "b"),
        ("qwen3", {"modules_to_save": ["norm"]}, "model.layers.0.input_layernorm.weight"),
        ("gpt2", {"target_modules": ["c_proj"], "fan_in_fan_out": True}, "gpt2"),
    ],
)
def test_what_llama_cpp_has_no_place_for_is_refused(kind, options, found, tmp_path) -> None:
    made = saved(tmp_path, kind, **{"r": 2, "target_modules": ["q_proj"]} | options)
    with pytest.raises(UsageError) as refused:
        written(tmp_path, made)
    assert refused.value.found == found
    assert not (tmp_path / "it.gguf").exists()
