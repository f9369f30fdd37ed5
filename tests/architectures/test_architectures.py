"""Every kind of model is a backbone with transformers' numbers, or refused with a reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from models import MODELS, Model, save
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.backbone.trial import BackboneTrial
from redhost_author.project import package_in
from redhost_author.training.context import open_backbone
from torch import Tensor
from torch.nn.functional import layer_norm

import redhost

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
START = "<!-- tried -->\n"
TEXTS = ["x", "What is 37 plus 12?", "GOOD MORNING", "🇩🇪 ✓", "שלום", "the new budget " * 200]


@pytest.fixture(scope="module")
def trial() -> Iterator[BackboneTrial]:
    with BackboneTrial() as made:
        yield made


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")  # of transformers, on models this small
def test_it_has_transformers_numbers_or_is_refused(name, tmp_path, trial) -> None:
    model, project = MODELS[name], tmp_path / "backbone"
    folder = save(model, tmp_path / "model")
    if model.refused is not None:
        with pytest.raises(redhost.RedhostError, match=model.refused):
            new_backbone(project, BackbonePlan(id="x", source=f"hf:{folder}"), trial=trial)
        assert not project.exists()
        return
    new_backbone(project, BackbonePlan(id="x", source=f"hf:{folder}"), trial=trial)
    _, backbone, _ = open_backbone(package_in(project))
    assert backbone.trunk.longest == model.reads
    h = backbone.encode(TEXTS)
    expected, width = plain(folder, model.reads), backbone.trunk.model.config.hidden_size
    worst = (h[:, width : 2 * width] - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(worst.max()) < 1e-4
    alone = torch.cat([backbone.encode([text]) for text in reversed(TEXTS)])
    assert torch.equal(alone.flip(0), h)


def plain(folder: Path, longest: int | None) -> Tensor:
    """Return LN of the mean of the last states ``(N, D)``, by transformers alone."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    kinds = "T5", "Switch", "Pegasus", "Marian"  # their decoders want a text of their own
    if any(kind in type(model).__name__ for kind in kinds):
        model = model.get_encoder()
    rows = []
    for text in TEXTS:
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        with torch.no_grad():
            ids = tokenizer(text, return_tensors="pt", **cut)["input_ids"]
            mask = torch.ones_like(ids)
            output = model.eval()(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        states = getattr(output, "hidden_states", None) or output.decoder_hidden_states
        rows.append(states[-1].mean(1))
    h = torch.cat(rows)
    return layer_norm(h, h.shape[-1:])


def test_the_page_lists_them() -> None:
    """`ARCHITECTURES=write` writes the lists, after models were added."""
    page = PAGE.read_text("utf-8")
    before = page[: page.index(START)] + START
    if os.environ.get("ARCHITECTURES") == "write":
        PAGE.write_text(before + lists(), "utf-8")
    assert PAGE.read_text("utf-8") == before + lists()


def lists() -> str:
    """Return the models by what limits a text's tokens, then those refused with the reason."""
    backbones: dict[str, list[str]] = {}
    refused = []
    for name, model in MODELS.items():
        named = f"{name} (`{model.kind}`)"
        if model.refused is None:
            backbones.setdefault(limit(model), []).append(named)
        else:
            refused.append(f"- {named}: {model.why}\n")
    by_limit = "".join(f"- **{cut}**: {'; '.join(names)}\n" for cut, names in backbones.items())
    heading = "\nBackbones, by what limits a text's tokens:\n\n"
    return f"{heading}{by_limit}\nRefused:\n\n{''.join(refused)}"


def limit(model: Model) -> str:
    """Return what limits a text's tokens."""
    if model.reads is None:
        return "any number"
    if model.limit is not None:
        return "`model_max_length`"
    size = model.settings.get("max_position_embeddings")
    return "positions − padding − 1" if size == model.reads + 2 else "positions"
