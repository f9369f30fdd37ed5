"""The subject: a backbone, its plain files for other libraries, a home of five experts, and texts.

Lines are those of a television series' transcripts, 18 tokens on average; posts are those of the
training file of 20 Newsgroups, most of which fill the encoder. The test file is not opened.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redhost_author
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from torch import Tensor, nn

import redhost
from red_lab.models import plain, smollm2_file
from red_lab.newsgroups import TEAMS, encoder, lines, rows
from redhost.core.backbones.bfloat16 import BF16, is_capable
from redhost.core.types import BackgroundRow
from redhost.registry.environment.trust import trust
from redhost.testing import Environment

__all__ = [
    "ENGINES",
    "HEAD_ROWS",
    "MAX_TOKENS",
    "Subject",
    "pick",
    "prepare",
    "runs_here",
    "training_rows",
]

MAX_TOKENS = 128
"""Maximum number of tokens of a text, for every system."""

ENGINES = (BF16, "onnx", "onnx-int8")
"""Devices other than torch in float32: redhost's own, and those of redhost-onnx."""

BACKGROUND = 32

WORDS = 16
"""Words of the training texts of heads and experts, which do not affect the cost of answers."""

EXPERT_ROWS, HEAD_ROWS = 15, 5
"""Rows of each label."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The folders that a system opens.

    Attributes:
        model: The encoder's folder, for transformers and sentence-transformers.
        onnx: The same encoder and its pooling, for onnxruntime.
        home: A home with a composed generation of experts of the default form.
    """

    model: Path
    onnx: Path
    home: Path

    @contextmanager
    def host(self, device: str | None = None) -> Iterator[redhost.Host]:
        """Open the home, or that of an engine, with its encoder loaded.

        Args:
            device: One of `ENGINES`; None for torch.
        """
        if device is None:
            yield redhost.Host.open(self.home)
            return
        folder = self.home.parent
        set_so = {
            "REDHOST_CONFIG": str(folder / "config"),
            "REDHOST_ONNX_CACHE": str(folder / "onnx"),
        }
        before = {name: os.environ.get(name) for name in set_so}
        os.environ.update(set_so)
        try:
            trust("redhost-onnx")
            home = folder / f"home-{device}"
            yield redhost.Host.open(home, backbone=folder.name, device=device)
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ |= {} if value is None else {name: value}

    @property
    def homes(self) -> dict[str | None, Path]:
        """The homes by the form of their experts: the default, which reads words, and another."""
        return {None: self.home, "linear": self.home.with_name("home-linear")}

    @property
    def exported(self) -> Path:
        """The folder of the exported generation, which answers without torch."""
        return self.home.parent / "exported"

    @classmethod
    def under(cls, folder: Path, name: str) -> Subject:
        """Return the paths of a backbone's subject under a folder."""
        model = encoder() if name == "minilm" else folder / name / "model"
        return cls(model=model, onnx=folder / name / "encoder.onnx", home=folder / name / "home")


def runs_here(side: str) -> bool:
    """Return whether this processor has the instructions that a system, or an engine, needs."""
    return is_capable() or not side.endswith(BF16)


def prepare(*, name: str, folder: str) -> dict[str, Any]:
    """Write missing parts of a subject; runs in a separate process.

    Args:
        name: ``minilm`` or ``smollm2``.
        folder: The folder of the subjects.
    """
    subject = Subject.under(Path(folder), name)
    source = f"hf:{encoder()}" if name == "minilm" else f"gguf:{smollm2_file()}"
    if not (subject.model / "config.json").exists():
        trunk = redhost.Backbone.load(source, pooling="mean").trunk
        trunk.tokenizer.save_pretrained(subject.model)
        plain(trunk.model).save_pretrained(subject.model)
    if not subject.onnx.exists():
        _export(subject)
    if not all((home / "current").exists() for home in subject.homes.values()):
        shutil.rmtree(subject.home.parent / "packages", ignore_errors=True)
        _compose(name, source, subject)
    with _on_path(subject.home.parent / "packages" / subject.home.name):
        for device in filter(runs_here, ENGINES):
            if not (subject.home.parent / f"home-{device}" / "current").exists():
                with subject.host(device) as host:
                    host.recompose(accept=True)
    if not subject.exported.exists():
        from redhost_onnx.generation import export_generation

        export_generation(redhost.Host.open(subject.home).composed, subject.exported)
    return {}


class _Pooled(nn.Module):
    """An encoder with mean pooling over the tokens that are not padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return h ``(B, D)`` for token ids and their mask ``(B, T)``."""
        output = self.model(input_ids=input_ids, attention_mask=attention_mask)
        keep = attention_mask[..., None].float()
        h: Tensor = (output.last_hidden_state * keep).sum(1) / keep.sum(1)
        return h


def _export(subject: Subject) -> None:
    """Write the encoder as torch exports it, for batches of any shape."""
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(subject.model).eval()
    model.config.use_cache = False
    ids = torch.arange(51).reshape(3, 17)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    shape = {0: torch.export.Dim("batch", min=1, max=4096), 1: torch.export.Dim("tokens", max=512)}
    subject.onnx.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own modules
        torch.onnx.export(
            _Pooled(model).eval(),
            (ids, mask),
            subject.onnx,
            input_names=["input_ids", "attention_mask"],
            output_names=["h"],
            dynamo=True,
            dynamic_shapes=(shape, shape),
            verbose=False,
        )


def _compose(name: str, source: str, subject: Subject) -> None:
    """Train five experts of each form on a few short texts, as authors would; compose them."""
    packages = subject.home.parent / "packages"
    project = packages / f"red-backbone-{name}"
    new_backbone(
        project,
        BackbonePlan(id=name, source=source, pooling="mean", max_tokens=MAX_TOKENS),
        background=[BackgroundRow(text=t) for t in lines()[:BACKGROUND]],
    )
    context = redhost_author.open_for_training(
        next((project / "src").iterdir()), cache=packages / "cache"
    )
    taught = training_rows(EXPERT_ROWS)
    for form, home in subject.homes.items():
        environment = Environment(packages / home.name)
        environment.folder.mkdir()
        environment.install(project)
        for team in TEAMS:
            of_team = packages / f"of-{home.name}" / f"red-expert-{team}"
            redhost_author.write_project(of_team, kind="expert", package_id=team, summary=team)
            redhost_author.train_package(
                of_team,
                redhost_author.ExpertPlan(id=team, writes="labels", form=form),
                redhost_author.split_rows([r for r in taught if r.domain == team]),
                context=context,
                settings=redhost_author.ExpertSettings(space="labels", seed=0),
            )
            environment.install(of_team)
        with _on_path(environment.folder), redhost.Host.open(home, backbone=name) as host:
            host.recompose(accept=True)


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def pick(kind: str) -> list[str]:
    """Return all texts of a kind, in a fixed random order."""
    found = lines() if kind == "lines" else [row.text for row in rows("train")]
    random.Random(0).shuffle(found)  # noqa: S311  (an order, no secret)
    return found


def training_rows(each: int) -> list[redhost.Row]:
    """Return short rows of every label: the first words of posts.

    Args:
        each: Number of rows of a label.
    """
    found: dict[str, dict[str, redhost.Row]] = {}
    for row in rows("train"):
        text = " ".join(row.text.split()[:WORDS])
        of_label = found.setdefault(row.label, {})
        if len(of_label) < each:
            of_label[text] = redhost.Row(text=text, label=row.label, domain=row.domain)
    return [row for of_label in found.values() for row in of_label.values()]
