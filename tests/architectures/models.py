"""Small random models of every kind that people bring, each with a tokenizer, written as folders."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LINES = [
    "the committee meets on thursday to talk about the budget of the new library",
    "what is 37 plus 12 and who asked for it",
    "good morning to all of you, and a good evening to everybody else",
    "a driver crashes when the second monitor is plugged in, says the report",
    "Largest Rivers Of Europe, by length: Volga, Danube, Ural, Dnieper",
]

LENGTH = 64
"""Tokens that most of the models read."""

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER = {**SIZES, "intermediate_size": 64, "max_position_embeddings": LENGTH}
# Positions of these begin at padding_idx + 1.
OFFSET = {**ENCODER, "max_position_embeddings": LENGTH + 2, "pad_token_id": 1}
DECODER = {**ENCODER, "num_key_value_heads": 1, "head_dim": 16}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": LENGTH,
}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": LENGTH}


@dataclass(frozen=True)
class Model:
    """A model to make.

    Attributes:
        kind: Its ``model_type``.
        settings: Its configuration.
        words: The kind of its tokenizer.
        head: The class that is saved, if it is not the one of AutoModel.
        reads: The most tokens it reads; None for any number.
        limit: The tokenizer's ``model_max_length``, if it states one.
        refused: A part of the error with which `new-backbone` refuses it.
        why: The reason, for the page.
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    words: str = "wordpiece"
    head: str | None = None
    reads: int | None = LENGTH
    limit: int | None = None
    refused: str | None = None
    why: str = ""


MODELS = {
    "BERT": Model("bert", ENCODER),
    "BERT, limit of the tokenizer": Model("bert", ENCODER, limit=48, reads=48),
    "RoBERTa": Model("roberta", OFFSET, "bpe"),
    "XLM-RoBERTa": Model("xlm-roberta", OFFSET, "unigram"),
    "CamemBERT": Model("camembert", OFFSET, "unigram"),
    "MPNet": Model("mpnet", OFFSET),
    "Longformer": Model("longformer", {**OFFSET, "attention_window": [16, 16]}, "bpe"),
    "ALBERT": Model("albert", {**ENCODER, "embedding_size": 16}, "unigram"),
    "DistilBERT": Model(
        "distilbert",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 64},
    ),
    "ELECTRA": Model("electra", {**ENCODER, "embedding_size": 16}),
    "DeBERTa": Model("deberta", ENCODER, "bpe"),
    "DeBERTa v2": Model("deberta-v2", ENCODER, "unigram"),
    "DeBERTa v2, relative": Model(
        "deberta-v2",
        {
            **ENCODER,
            "relative_attention": True,
            "position_biased_input": False,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
        },
        "unigram",
    ),
    "BigBird": Model("big_bird", ENCODER, "unigram"),
    "BigBird, sparse": Model(
        "big_bird", {**ENCODER, "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 128},
        "unigram", reads=128, refused="cannot be used",
        why="a text shorter than the sparse attention needs switches it off for all later texts: "
        "give a `--max-tokens` within it",
    ),
    "Funnel": Model(
        "funnel",
        {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "block_sizes": [1, 1], "block_repeats": [1, 1],
         "num_decoder_layers": 1},
        refused="cannot be used", why="fails at texts of two or three tokens",
    ),
    "XLNet": Model(
        "xlnet", {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}, "unigram", reads=None
    ),
    "T5": Model("t5", T5, "unigram", reads=None),
    "T5 encoder": Model("t5", T5, "unigram", head="T5EncoderModel", reads=None),
    "mT5": Model("mt5", T5, "unigram", reads=None),
    "LongT5": Model("longt5", {**T5, "local_radius": 8}, "unigram", reads=None),
    "BART": Model("bart", SEQ2SEQ, "bpe"),
    "mBART": Model("mbart", SEQ2SEQ, "unigram"),
    "Pegasus": Model("pegasus", SEQ2SEQ, "unigram"),
    "Marian": Model("marian", {**SEQ2SEQ, "pad_token_id": 0}, "unigram"),
    "LED": Model("led", {**{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"}, "attention_window": [16, 16], "max_encoder_position_embeddings": 64,
                         "max_decoder_position_embeddings": 64}, "bpe"),
    "OPT": Model("opt", {**SIZES, "ffn_dim": 64, "max_position_embeddings": LENGTH, "word_embed_proj_dim": 32}, "bpe"),
    "OPT, narrow": Model("opt", {**SIZES, "ffn_dim": 64, "max_position_embeddings": LENGTH, "word_embed_proj_dim": 16, "do_layer_norm_before": False}, "bpe", refused="states as wide as hidden_size", why="its states are narrower than `hidden_size`"),
    "GPT": Model("openai-gpt", GPT, "bpe"),
    "GPT-2": Model("gpt2", GPT, "bpe"),
    "GPT-Neo": Model("gpt_neo", {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 16, "max_position_embeddings": LENGTH}, "bpe"),
    "GPT-NeoX": Model("gpt_neox", ENCODER, "bpe"),
    "GPT-J": Model("gptj", {**GPT, "rotary_dim": 8}, "bpe"),
    "CodeGen": Model("codegen", {**GPT, "rotary_dim": 8, "n_head": 4}, "bpe"),
    "GPT BigCode": Model("gpt_bigcode", GPT, "bpe"),
    "Llama": Model("llama", DECODER, "bpe"),
    "Mistral": Model("mistral", {**DECODER, "sliding_window": 16}, "bpe"),
    "Mixtral": Model("mixtral", {**DECODER, "num_local_experts": 2}, "bpe"),
    "Qwen2": Model("qwen2", DECODER, "bpe"),
    "Qwen2 MoE": Model("qwen2_moe", {**DECODER, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}, "bpe"),
    "Qwen3": Model("qwen3", DECODER, "bpe"),
    "Gemma": Model("gemma", DECODER, "unigram"),
    "Gemma 2": Model("gemma2", {**DECODER, "sliding_window": 16}, "unigram"),
    "Gemma 3": Model("gemma3_text", {**DECODER, "sliding_window": 16}, "unigram"),
    "Phi": Model("phi", ENCODER, "bpe"),
    "Phi-3": Model("phi3", {**DECODER, "pad_token_id": 0, "original_max_position_embeddings": LENGTH}, "bpe"),
    "Falcon": Model("falcon", SIZES, "bpe", reads=2048),
    "Falcon, ALiBi": Model("falcon", {**SIZES, "alibi": True}, "bpe", reads=2048),
    "Bloom": Model("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 2}, "bpe", reads=None),
    "MPT": Model("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": LENGTH}, "bpe"),
    "ModernBERT": Model("modernbert", {**ENCODER, "global_attn_every_n_layers": 2, "local_attention": 16}, "bpe"),
    "NomicBERT": Model("nomic_bert", ENCODER),
    "Jina v3": Model("jina_embeddings_v3", ENCODER, "unigram"),
    "EuroBERT": Model("eurobert", DECODER, "bpe"),
    "ConvBERT": Model("convbert", {**ENCODER, "embedding_size": 32}),
    "MobileBERT": Model("mobilebert", {**ENCODER, "embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 1}),
    "SqueezeBERT": Model("squeezebert", {**ENCODER, "embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2}),
    "RemBERT": Model("rembert", {**ENCODER, "input_embedding_size": 16}, "unigram"),
    "Nyströmformer": Model("nystromformer", {**ENCODER, "segment_means_seq_len": 64, "num_landmarks": 8}, refused="is invalid for input", why="reads texts of exactly `segment_means_seq_len` tokens"),
    "YOSO": Model("yoso", {**ENCODER, "use_expectation": True}),
    "FNet": Model("fnet", ENCODER, "unigram"),
    "LayoutLM": Model("layoutlm", ENCODER),
    "ERNIE": Model("ernie", ENCODER),
    "RoFormer": Model("roformer", {**ENCODER, "embedding_size": 32}),
    "RoBERTa, pre-norm": Model("roberta-prelayernorm", OFFSET, "bpe"),
    "XLM-RoBERTa XL": Model("xlm-roberta-xl", OFFSET, "unigram"),
    "Data2Vec": Model("data2vec-text", OFFSET, "bpe"),
    "I-BERT": Model("ibert", OFFSET, "bpe"),
    "Megatron-BERT": Model("megatron-bert", ENCODER),
    "ESM": Model("esm", {**OFFSET, "vocab_size": 200, "position_embedding_type": "rotary"}, refused="names of letters", why="transformers saves it with a tensor whose name has an asterisk"),
    "LUKE": Model("luke", {**OFFSET, "entity_vocab_size": 8, "entity_emb_size": 16}, "bpe"),
    "X-MOD": Model("xmod", {**OFFSET, "languages": ["en_XX"], "default_language": "en_XX"}, "unigram"),
    "Reformer": Model("reformer", {"hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16, "feed_forward_size": 64, "attn_layers": ["local", "lsh"], "axial_pos_embds": False, "max_position_embeddings": 64, "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 4, "is_decoder": False}, "unigram", refused="cannot be used", why="hashes with chance: a text has other vectors every time"),
    "XLM": Model("xlm", XLM, "bpe"),
    "FlauBERT": Model("flaubert", XLM, "bpe"),
    "CTRL": Model("ctrl", {"n_embd": 32, "dff": 64, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}, "bpe"),
    "XGLM": Model("xglm", {"d_model": 32, "num_layers": 2, "attention_heads": 2, "ffn_dim": 64, "max_position_embeddings": LENGTH}, "unigram"),
    "StableLM": Model("stablelm", {**DECODER, "num_key_value_heads": 2}, "bpe"),
    "OLMo": Model("olmo", {**DECODER, "num_key_value_heads": 2}, "bpe"),
    "OLMo 2": Model("olmo2", {**DECODER, "num_key_value_heads": 2}, "bpe"),
    "SmolLM3": Model("smollm3", DECODER, "bpe"),
    "Granite": Model("granite", DECODER, "bpe"),
    "Cohere": Model("cohere", DECODER, "bpe"),
    "Starcoder 2": Model("starcoder2", DECODER, "bpe"),
    "Mamba": Model("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "bpe", reads=None),
    "Mamba 2": Model("mamba2", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}, "bpe", reads=None),
    "RWKV": Model("rwkv", {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 64, "context_length": 64}, "bpe"),
    "CLIP text": Model("clip_text_model", ENCODER, "bpe"),
    "DPR": Model("dpr", ENCODER, head="DPRQuestionEncoder", refused="last_hidden_state", why="gives no states, but a vector"),
    "CANINE": Model("canine", ENCODER, refused="vocab_size", why="its vocabulary is no size of its weights"),
    "Switch": Model("switch_transformers", {**T5, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 2, "num_decoder_layers": 2}, "unigram", reads=None),
}  # fmt: skip


def save(model: Model, folder: Path) -> Path:
    """Write a model with seeded random weights and its tokenizer, and return the folder."""
    import transformers

    words = tokenizer(model.words)
    if model.limit is not None:
        words.model_max_length = model.limit
    config = transformers.AutoConfig.for_model(
        model.kind,
        **{"vocab_size": len(words), "pad_token_id": words.pad_token_id, **model.settings},
    )
    kind = getattr(transformers, model.head) if model.head else transformers.AutoModel
    config.architectures = []
    torch.manual_seed(0)
    made = kind.from_config(config) if model.head is None else kind(config)
    made.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def tokenizer(kind: str) -> Any:
    """Return a tokenizer of a kind, trained on a few lines."""
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer.from_str(_trained(kind))
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    names |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=plain, **names)


SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@cache
def _trained(kind: str) -> str:
    made: Any
    if kind == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL)
    elif kind == "bpe":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet
        )
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")
    made.train_from_iterator(LINES, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return str(made.to_str())
