"""GGUF files of small models, written as llama.cpp's own conversion writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

PRE = "qwen2"
"""llama.cpp's name of a division into words; a vocabulary of bytes does not depend on it."""


def permuted(rows: Any, heads: int) -> Any:
    """Return the rows of q or k of a Llama in the order of `convert_hf_to_gguf.py`."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf_model(folder: Path, path: Path, *, starts: bool = False) -> Path:
    """Write a model of bytes, saved by transformers in a folder, as a GGUF file of floats.

    With `starts`, llama.cpp puts the start token before texts; the tokenizer itself does not.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    tokens = PreTrainedTokenizerFast.from_pretrained(folder)  # Qwen2's own class adds a token
    config = model.config
    kind = {"mistral": "llama"}.get(config.model_type, config.model_type)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    names = gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[kind], config.num_hidden_layers
    )
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    vocabulary = sorted(tokens.get_vocab().items(), key=lambda item: item[1])
    marks = {*tokens.all_special_tokens}
    writer.add_token_list([sign for sign, _ in vocabulary])
    writer.add_token_types([3 if sign in marks else 1 for sign, _ in vocabulary])
    rare = vocabulary[-1][0]  # llama.cpp wants one; what it makes is no token, so it is bytes again
    writer.add_token_merges([f"{rare} {rare}"])
    writer.add_bos_token_id(tokens.bos_token_id)
    writer.add_eos_token_id(tokens.eos_token_id)
    writer.add_add_bos_token(starts)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows, role = tensor.float().numpy(), name.split(".")[-2]
        if kind == "llama" and role in heads:
            rows = permuted(rows, heads[role])
        there = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(there, np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
