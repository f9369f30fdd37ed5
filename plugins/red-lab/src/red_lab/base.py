"""Build the packages of a split: the tiny arithmetic backbone, and its five experts.

The backbone is pretrained, adapted once, frozen and packaged.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import redhost_author
import torch
from redhost_author.backbone.adapt import AdaptSettings, adapt
from redhost_author.training.packaging import save_backbone
from redhost_author.versions import library_versions

import redhost
from red_lab.arithmetic import (
    FIRST_ANSWER,
    LAST_ANSWER,
    RANGES,
    Pair,
    Split,
    pairs_with,
    rows,
    share_of,
)
from red_lab.corpus import background_rows
from red_lab.progress import shown
from red_lab.ranges import build_expert, open_range_training
from red_lab.tiny_model import Pretraining, TinyLM, make_tokenizer, pretrain
from redhost.core.types import write_rows
from redhost.registry.package.manifest import Training

__all__ = [
    "LABELS",
    "BaseRecipe",
    "adapt_on",
    "adaptation_pairs",
    "build_all",
    "installed_share",
    "language_model",
]

LABELS = tuple(str(n) for n in range(FIRST_ANSWER, LAST_ANSWER + 1))
SHARE = 0.2
"""The share of the experts' training pairs that the base stage is trained on, small on purpose."""


@dataclass(frozen=True, kw_only=True)
class BaseRecipe:
    """Settings of a backbone of this family; chosen on fold 3, see the lab notes.

    Attributes:
        share: The share of the experts' training pairs that the base stage is trained on.
        pretraining: The language model's training.
        adaptation: The base stage.
    """

    share: float = SHARE
    pretraining: Pretraining = field(default_factory=Pretraining)
    adaptation: AdaptSettings = field(
        default_factory=lambda: AdaptSettings(last_blocks=2, epochs=20, batch=64)
    )


def build_backbone(
    split: Split, project: Path, *, seed: int = 0, recipe: BaseRecipe | None = None, work: Path
) -> Path:
    """Build a backbone for a split and write it as a package.

    Args:
        split: What is held out.
        project: The project folder to write.
        seed: Random seed of every stage.
        recipe: The settings.
        work: Folder of checkpoints.

    Returns:
        The package's folder.
    """
    recipe = recipe or BaseRecipe()
    model = pretrain(
        split, seed=seed, settings=recipe.pretraining, checkpoint=work / f"lm-{seed}.pt"
    )
    pairs = adaptation_pairs(split, share=recipe.share)
    backbone = adapt_on(language_model(model), pairs, recipe=recipe, seed=seed)
    folder = redhost_author.write_project(
        project,
        kind="backbone",
        package_id="tiny",
        summary="redhost backbone: a tiny Qwen3 that read arithmetic, adapted once and frozen",
    )
    save_backbone(
        folder,
        dataclasses.replace(backbone, name="tiny"),
        base=_model_files(backbone),
        background=write_rows(background_rows(split)),
        evaluation=write_rows(
            redhost.Row(text=r.text, label=r.label, domain=r.domain)
            for r in rows(split.test_pairs())
        ),
        training=Training(
            data=f"sums of {len(pairs)} of {len(split.train_pairs())} training pairs",
            seed=seed,
            epochs=recipe.adaptation.epochs,
            metrics={"share": recipe.share, "pairs": float(len(pairs))},
            versions=library_versions(),
            note="pretrained on arithmetic text without the held-out pairs; top blocks and "
            "classifier adapted once on the pairs counted here, then frozen",
        ),
    )
    return folder


def adaptation_pairs(split: Split, *, share: float) -> tuple[Pair, ...]:
    """Return the base stage's training pairs: a share of the experts', none of any card."""
    return share_of(pairs_with(split, "train"), share)


def adapt_on(
    bare: redhost.Backbone, pairs: tuple[Pair, ...], *, recipe: BaseRecipe, seed: int
) -> redhost.Backbone:
    """Run the base stage on the questions of these pairs, both orders."""
    return adapt(
        bare,
        [redhost.Row(text=r.text, label=r.label) for r in rows(pairs)],
        labels=LABELS,
        settings=dataclasses.replace(recipe.adaptation, seed=seed),
        progress=shown("adapting"),
    )


def language_model(model: TinyLM) -> redhost.Backbone:
    """Return a pretrained encoder as a bare backbone, by way of an ordinary folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.encoder.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        return redhost.Backbone.load(f"hf:{folder}", pooling="last")


def _model_files(backbone: redhost.Backbone) -> dict[str, bytes]:
    """Return the files of an ordinary Hugging Face folder."""
    with tempfile.TemporaryDirectory() as folder:
        backbone.trunk.model.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


THREADS = 2
"""Results depend on the number of threads bit by bit, so builds fix it."""


def build_all(number: int, *, seed: int, out: Path, work: Path) -> list[Path]:
    """Build the backbone and the experts of a split as projects in a folder.

    Args:
        number: The split, 0..4; 0 is the one that is shipped.
        seed: Random seed of all stages.
        out: Folder of the project folders.
        work: Folder of checkpoints.

    Returns:
        The packages' folders, the backbone's first.
    """
    torch.set_num_threads(THREADS)
    split = Split.numbered(number)
    backbone = build_backbone(split, out / "red-backbone-tiny", seed=seed, work=work)
    context = open_range_training(backbone, split)
    experts = [
        build_expert(context, name, out / f"red-expert-{name}", seed=seed) for name, _, _ in RANGES
    ]
    return [backbone, *experts]


def installed_share() -> str:
    """Return a sentence on the share of the data that the installed backbone was trained on."""
    version = distribution("red-backbone-tiny").version
    spec = find_spec("red_backbone_tiny")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("red_backbone_tiny has no files")
    manifest = json.loads(Path(spec.origin).with_name("backbone.json").read_bytes())
    training = manifest["training"]
    return (
        f"red-backbone-tiny {version} was adapted on {training['metrics']['share']:.0%} of the "
        f"experts' training pairs ({training['data']}); the rows above are pairs nobody saw"
    )
