"""The tiny generative backbone: its words, its training, its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from red_lab import training
from red_lab.generative import tiny
from red_lab.generative.corpora import General
from red_lab.generative.documents import Document
from red_lab.generative.tiny import (
    START,
    GenerativePretraining,
    GenerativeShape,
    bits_per_byte,
    learn_tokenizer,
    tiny_language_model,
    token_stream,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = [f"the {n} birds rest on the old bridge near the river\n" * 9 for n in range(20)]
SHAPE = GenerativeShape(vocabulary=300, width=16, blocks=2, heads=2, inner=32, longest=64)
SHORT = GenerativePretraining(steps=2, batch=4, window=32, warmup=1, every=1)
GENERAL = General(
    base=tuple(Document("d", str(n), text) for n, text in enumerate(TEXTS)),
    valid=(Document("d", "valid", "the 42 birds rest on the old bridge near the river\n"),),
    background=(),
    source={"python": "3"},
    digest="sha256:0",
)
WORDS = learn_tokenizer(TEXTS, vocabulary=300, longest=64)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(work: Path, *, steps: GenerativePretraining = SHORT, general: General = GENERAL) -> Path:
    return tiny_language_model(work, shape=SHAPE, settings=steps, general=general)


@settings(deadline=None)
@given(st.text())
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    ids = WORDS(text)["input_ids"]
    assert WORDS.decode(ids) == text


def test_digits_are_single_tokens_and_a_text_starts_with_its_own() -> None:
    assert 256 < len(WORDS) <= 300 and WORDS.bos_token == START
    assert len(WORDS("2026")["input_ids"]) == 4
    stream = token_stream(WORDS, ["the bird", "37"]).tolist()
    start = WORDS.bos_token_id
    assert stream[0] == start and stream.count(start) == 2
    assert WORDS.decode(stream[1 : stream.index(start, 1)]) == "the bird"


def test_the_folder_loads_through_transformers(tmp_path) -> None:
    folder = made(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    words = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen3" and model.config.bos_token_id == words.bos_token_id
    assert model.lm_head.weight is model.get_input_embeddings().weight
    text = "Ça « vaut » 37 + 12,\n\tn’est-ce pas ?"
    assert words.decode(words(text)["input_ids"]) == text
    ids = torch.tensor([[words.bos_token_id, *words("the old bridge")["input_ids"]]])
    changed = ids.clone()
    changed[0, -1] = 5
    with torch.inference_mode():
        before, after = (model(i).logits[:, :-1] for i in (ids, changed))
    assert torch.equal(before, after)
    record = json.loads((folder / "training.json").read_text("utf-8"))
    bits = bits_per_byte(model, words, [d.text for d in GENERAL.valid])
    assert record["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert record["general"] == GENERAL.digest and record["source"] == {"python": "3"}


def test_training_goes_on_where_it_stopped_bit_for_bit(tmp_path, monkeypatch) -> None:
    whole = made(tmp_path / "whole")
    step, calls = training.descend, []

    def stopping(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(tiny, "descend", stopping)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "stopped")
    assert not (tmp_path / "stopped" / whole.name).exists()
    resumed = made(tmp_path / "stopped")
    assert len(calls) == 3
    weights = [(f / "model.safetensors").read_bytes() for f in (whole, resumed)]
    assert weights[0] == weights[1]


def test_a_checkpoint_of_other_texts_is_refused(tmp_path, monkeypatch) -> None:
    def stopping(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "_saved", stopping)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path)
    with pytest.raises(ValueError, match="checkpoint of another run"):
        made(tmp_path, general=replace(GENERAL, digest="sha256:1"))


def test_the_second_time_nothing_is_trained(tmp_path, monkeypatch) -> None:
    folder = made(tmp_path)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(tiny, "_pretrained", None)
    assert made(tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(TypeError):
        made(tmp_path, steps=GenerativePretraining(steps=3, batch=4, window=32))


def test_it_learns(tmp_path) -> None:
    long = GenerativePretraining(steps=150, batch=4, window=32, warmup=2, every=150)
    bits = [
        json.loads((made(tmp_path / str(s.steps), steps=s) / "training.json").read_text("utf-8"))
        for s in (SHORT, long)
    ]
    assert bits[1]["bits_per_byte"] < 0.8 * bits[0]["bits_per_byte"]
