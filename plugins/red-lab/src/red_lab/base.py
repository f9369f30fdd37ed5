"""Build the packages of a split: the tiny arithmetic backbone, and its five experts.

The backbone is pretrained, adapted once, frozen and packaged.
"""

from __future__ import annotations

import dataclasses
import tempfile
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
from red_lab.tiny_model import TinyLM, make_tokenizer, pretrain
from redhost.core.types import write_rows
from redhost.registry.package.manifest import Training

__all__ = [
    "LABELS",
    "SHARE",
    "adapt_on",
    "adaptation_pairs",
    "build_all",
    "language_model",
]

LABELS = tuple(str(n) for n in range(FIRST_ANSWER, LAST_ANSWER + 1))
SHARE = 0.2
"""The share of the experts' training pairs that the base stage is trained on, small on purpose."""


ADAPTATION = AdaptSettings(last_blocks=2, epochs=20, batch=64)
"""The base stage; chosen on fold 3, see the lab notes."""


def build_backbone(split: Split, project: Path, *, seed: int = 0, work: Path) -> Path:
    """Build a backbone for a split and write it as a package.

    Args:
        split: What is held out.
        project: The project folder to write.
        seed: Random seed of every stage.
        work: Folder of checkpoints.

    Returns:
        The package's folder.
    """
    model = pretrain(split, seed=seed, checkpoint=work / f"lm-{seed}.pt")
    pairs = adaptation_pairs(split, share=SHARE)
    backbone = adapt_on(language_model(model), pairs, seed=seed)
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
            epochs=ADAPTATION.epochs,
            metrics={"share": SHARE, "pairs": float(len(pairs))},
            versions=library_versions(),
            note="pretrained on arithmetic text without the held-out pairs; top blocks and "
            "classifier adapted once on the pairs counted here, then frozen",
        ),
    )
    return folder


def adaptation_pairs(split: Split, *, share: float) -> tuple[Pair, ...]:
    """Return the base stage's training pairs: a share of the experts', none of any card."""
    return share_of(pairs_with(split, "train"), share)


def adapt_on(bare: redhost.Backbone, pairs: tuple[Pair, ...], *, seed: int) -> redhost.Backbone:
    """Run the base stage on the questions of these pairs, both orders."""
    return adapt(
        bare,
        [redhost.Row(text=r.text, label=r.label) for r in rows(pairs)],
        labels=LABELS,
        settings=dataclasses.replace(ADAPTATION, seed=seed),
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
