"""Folders of sentence-transformers, beside the library itself: the same vectors."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

import redhost
from redhost.core.training.sentence_folder import pooling_of
from redhost.testing import tiny_backbone

TEXTS = ["What is 3 plus 4?", "good morning", "a text that is a little longer than those two are"]


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_vectors_are_those_of_the_library(tmp_path, mode) -> None:
    transformer = Transformer(str(tiny_backbone(tmp_path / "model")), max_seq_length=32)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=mode)
    theirs = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    theirs.tokenizer.pad_token = theirs.tokenizer.pad_token or theirs.tokenizer.eos_token
    folder = tmp_path / "saved"
    theirs.save(str(folder))
    found = pooling_of(folder)
    assert found is not None
    ours = redhost.Backbone.load(f"hf:{folder}", pooling=found, max_tokens=32)
    h = torch.nn.functional.normalize(ours.encode(TEXTS), dim=-1)
    expected = torch.stack([torch.tensor(theirs.encode(t)) for t in TEXTS])
    torch.testing.assert_close(h, expected, atol=1e-5, rtol=1e-4)
