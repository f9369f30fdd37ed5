"""The data of the study: a backbone, experts with their rows, and test rows."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import redhost
from red_lab.arithmetic import RANGES, Split, pairs_in
from red_lab.ranges import EXPERT, role_rows
from red_lab.text.corpora import CORPORA
from red_lab.text.desk import open_desk
from redhost.core.composition.recompose import compose
from redhost.core.model.build import make_expert_module
from redhost.core.plugins.manager import Plugins
from redhost.core.training.context import AuthoringContext
from redhost.core.training.data import DataSplits
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_expert

__all__ = ["SUBJECTS", "Subject", "expert_in", "train_one"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """The data and settings that experts are trained and evaluated with.

    Attributes:
        name: Its name in files.
        title: A description for the page.
        backbone: The backbone package's folder.
        context: The backbone with its norm and background.
        cache: Folder of features.
        plan: Properties that all experts share.
        settings: Training settings.
        parts: Each expert's rows, by id.
        test: Held-out test rows.
        clusters: The observation that each test row belongs to.
        router: The router's kind, the same for all.
    """

    name: str
    title: str
    backbone: Path
    context: AuthoringContext
    cache: Path
    plan: redhost.authoring.ExpertPlan
    settings: redhost.authoring.ExpertSettings
    parts: Mapping[str, DataSplits]
    test: Sequence[redhost.Row]
    clusters: Sequence[str]
    router: str


def _ranges(work: Path) -> Subject:
    """The five ranges of sums on the shipped tiny backbone, through its classifier."""
    spec = importlib.util.find_spec("red_backbone_tiny")
    if spec is None or spec.origin is None:
        raise redhost.MissingError("red_backbone_tiny is not here", hint="Run 'make demo' first.")
    folder, split = Path(spec.origin).parent, Split.numbered(0)
    parts = {}
    for name, _, _ in RANGES:
        train, fit, gate = (
            tuple(redhost.Row(text=r.text, label=r.label) for r in role_rows(split, part, name))
            for part in ("train", "fit", "gate")
        )
        parts[name] = DataSplits(train=train, valid=(), fit=fit, gate=gate)
    shipped = sorted(folder.parent.parent.parent.glob("red-expert-range*/src/*/expert.json"))
    composed = compose(folder, [p.parent for p in shipped]).composed
    return Subject(
        name="ranges",
        title="sums on the tiny backbone (D = 128), five experts that write hidden states",
        backbone=folder,
        context=redhost.authoring.open_for_training(folder, cache=work / "cache"),
        cache=work / "cache",
        plan=redhost.authoring.ExpertPlan(id="any", writes="hidden"),
        settings=dataclasses.replace(EXPERT, space="hidden", patience=EXPERT.epochs),
        parts=parts,
        test=composed.evaluation,
        clusters=[str(sorted(pairs_in(r.text))) for r in composed.evaluation],
        router="evidence",
    )


def _newswire(work: Path) -> Subject:
    """Five teams of newswire on MiniLM; no term of z bypasses the units (`mlp`)."""
    desk = open_desk(
        CORPORA["newswire"], encoder="minilm", work=work, validation=False, features=None
    )
    return Subject(
        name="newswire",
        title="Reuters newswire on all-MiniLM-L6-v2 (D = 384), five teams with labels of their own",
        backbone=desk.folder,
        context=desk.context,
        cache=work / "cache",
        plan=redhost.authoring.ExpertPlan(id="any", form="mlp", writes="labels", card="vectors"),
        settings=redhost.authoring.ExpertSettings(form="mlp", space="labels"),
        parts=desk.parts,
        test=desk.test,
        clusters=[r.text for r in desk.test],
        router="statistics",
    )


SUBJECTS: Mapping[str, Callable[[Path], Subject]] = {"ranges": _ranges, "newswire": _newswire}


def train_one(
    subject: Subject,
    expert_id: str,
    folder: Path,
    *,
    seed: int,
    rank: int | None = None,
) -> Path:
    """Train one expert alone, as its author does, and return its package.

    Args:
        subject: The data and settings.
        expert_id: The expert whose rows are used.
        folder: Folder of the project; a project of the same name is replaced.
        seed: Random seed of its weights and the order of rows.
        rank: R; None for the subject's own.
    """
    project = folder / f"red-expert-{expert_id}"
    shutil.rmtree(project, ignore_errors=True)
    package = redhost.authoring.write_project(
        project, kind="expert", package_id=expert_id, summary="merging"
    )
    given = {"id": expert_id, "rank": rank}
    plan = redhost.authoring.ExpertPlan(
        **{**{n: getattr(subject.plan, n) for n in subject.plan.__struct_fields__}, **given}
    )
    form = subject.plan.form or subject.settings.form
    settings = dataclasses.replace(subject.settings, form=form, rank=rank, seed=seed)
    redhost.authoring.train_package(
        project, plan, subject.parts[expert_id], context=subject.context, settings=settings
    )
    return package


def expert_in(package: Path) -> redhost.Expert:
    """Return the expert of a package."""
    files = read_expert(from_folder(package)).unwrap(package.name)
    bus = redhost.BusConfig(width=files.manifest.reads.width, labels=files.manifest.labels)
    made = make_expert_module(files, bus=bus, plugins=Plugins(()), providers={})
    return made.unwrap(package.name)
