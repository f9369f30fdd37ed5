"""Make a backbone package from any encoder: its files referenced or included, adapted or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.encoder import FeatureChoice
from redhost.core.backbones.pooling import PoolingChoice
from redhost.core.bus.task import CLASSIFICATION, Task
from redhost.core.types import BackgroundRow, Progress, Row, as_list, write_rows
from redhost.registry.errors import UsageError
from redhost.registry.package.checked import Refused, Violation, listed
from redhost.registry.package.discover import canonical
from redhost.registry.package.manifest import BackboneManifest, Base, Training
from redhost.registry.package.model_files import (
    INDEX,
    WEIGHTS,
    check_model_files,
    distribution_of,
    folder_of,
)
from redhost.registry.package.rules import CARRIED
from redhost.registry.package.safetensors_check import sha256_hex
from redhost_author.new_folder import making
from redhost_author.project import write_project
from redhost_author.training.baseline import refuse_below_constant
from redhost_author.training.data import require_answers
from redhost_author.training.packaging import save_backbone
from redhost_author.versions import library_versions

from .adapt import AdaptSettings, adapt, delta
from .sentence_folder import SentenceFolder, lower_first
from .trial import BackboneTrial

EVALUATED = 512
"""Most rows on which a base stage is evaluated."""

CHAT = "chat_template.jinja"
"""A file of a model folder that is only needed for text generation."""


@dataclass(frozen=True, kw_only=True)
class BackbonePlan:
    """The kind of a backbone: the model it is made of, and how that is read.

    Attributes:
        id: The backbone's id.
        source: ``hf:NAME_OR_DIR``, ``gguf:FILE``, or ``dist:DISTRIBUTION``, an installed package
            that has a model's files; ``dist:DISTRIBUTION/FOLDER`` if it has several.
        revision: The commit to pin, for hub names.
        pooling: How the states of a text become one vector; by default as a sentence encoder's
            folder says, else ``mean``.
        max_tokens: Token limit above which texts are cut; by default the least of what a sentence
            encoder's folder, the tokenizer and the model's positions say.
        features: The parts of h, see `TextEncoder`. After a base stage, or if bus rows are words or
            tokens, always the last states.
        task: What is predicted; labels by default.
    """

    id: str
    source: str
    revision: str | None = None
    pooling: PoolingChoice | None = None
    max_tokens: int | None = None
    features: FeatureChoice = "wide"
    task: Task = CLASSIFICATION


def new_backbone(
    project: Path,
    plan: BackbonePlan,
    *,
    rows: Sequence[Row] = (),
    settings: AdaptSettings | None = None,
    background: Sequence[BackgroundRow] = (),
    evaluation: Sequence[Row] = (),
    progress: Progress | None = None,
    trial: BackboneTrial | None = None,
) -> BackboneManifest:
    """Write a project with a backbone package, and try it.

    The package includes the files of a folder; it references a hub name by commit, a GGUF file by
    path, and the files of another package by their digests. Without `rows` the backbone has no
    classifier, and experts have labels of their own.

    Args:
        project: The project's folder.
        plan: The kind of backbone.
        rows: Labelled rows for the base stage.
        settings: How the base stage trains.
        background: Texts that experts learn to leave alone.
        evaluation: Held-out labelled rows.
        progress: Called with (steps done, steps in all) of the base stage.
        trial: Tries the package, when many are made; by default one is started.

    Raises:
        UsageError: If the source cannot be packaged, or the package fails its trial; nothing of
            it remains.
        MissingError: If the source cannot be loaded.
        StoreError: If the project cannot be written; nothing of it remains.
        HarmError: If the base stage learnt nothing; the package is written for inspection.
    """
    settings = settings or AdaptSettings()
    _require_teachable(plan.task, rows)
    background = as_list(background, BackgroundRow, "background row")
    base, files = _base(plan)  # refuse before anything is loaded or written
    held = base.kind == "dist"  # by another distribution
    opened = dataclasses.replace(plan, source=f"hf:{folder_of(base)}") if held else plan
    # The other process starts first: it loads its libraries while this one does.
    with nullcontext(trial) if trial else BackboneTrial() as attempt, making(project):
        bare = _bare(
            opened,
            files,
            # A classifier, as a language-model head, reads the last states.
            features=plan.features if plan.task.unit.whole and not rows else None,
        )
        finished = adapt(bare, rows, settings=settings, progress=progress) if rows else bare
        folder = write_project(
            project,
            kind="backbone",
            package_id=plan.id,
            summary=f"redhost backbone {plan.id}",
            requires=(base.id.partition("/")[0] + base.revision,) if held else (),
        )
        manifest = save_backbone(
            folder,
            finished,
            base=files or base,
            delta=delta(bare.trunk, finished.trunk) if rows else None,
            background=write_rows(background) if background else None,
            evaluation=write_rows(evaluation) if evaluation else None,
            training=Training(
                data=f"{len(rows)} labelled rows",
                seed=settings.seed,
                epochs=settings.epochs if rows else 0,
                versions=library_versions(),
                note=f"from {plan.source}",
            ),
        )
        attempt.run(folder, finished)
    _refuse_wreck(finished, (evaluation or rows)[:EVALUATED], taught=rows)
    return manifest


def _require_teachable(task: Task, rows: Sequence[Row]) -> None:
    """Refuse rows of a base stage that the task cannot be taught by."""
    if rows and not task.unit.whole:
        raise UsageError(
            f"a backbone that {task.unit.does} is taken as it is",
            expected="no rows for a base stage",
            found=f"{len(rows)} rows",
        )
    require_answers(task.head, rows)


def _bare(plan: BackbonePlan, files: dict[str, bytes], *, features: FeatureChoice) -> Backbone:
    """Return the unadapted backbone of a source, under its new name.

    A tokenizer that has to put texts into lower case is replaced in the package's files.

    Raises:
        UsageError: If the task is text generation and the tokenizer has no start or end token, or
            if a package cannot carry the tokenizer's files, or what the folder says.
    """
    where, task = Path(plan.source.partition(":")[2]).expanduser(), plan.task
    folder = SentenceFolder(str(where), plan.revision)
    bare = Backbone.load(
        plan.source,
        revision=plan.revision,
        pooling=task.unit.pooling or plan.pooling or folder.pooling or "mean",
        max_tokens=plan.max_tokens,
        features=features,
        task=task,
    )
    if plan.max_tokens is None:
        limits = [n for n in (folder.longest_input, bare.trunk.max_tokens) if n is not None]
        bare.trunk.max_tokens = min(limits, default=None)
    task.unit.check_trunk(bare.trunk)  # here, not when an expert's author first encodes a text
    if bare.trunk.pooling.dense and not task.unit.whole:
        expected = f"no dense layers of a backbone that {task.unit.does}"
        raise folder.refused(expected, "dense layers")
    _require_carried_vocabulary(bare, where)
    if folder.is_lowered:
        files |= lower_first(bare.trunk.tokenizer, carried=bool(files))
    return dataclasses.replace(bare, name=plan.id, task=task)


def _refuse_wreck(backbone: Backbone, rows: Sequence[Row], *, taught: Sequence[Row]) -> None:
    """Refuse a base stage after which predictions are worse than a constant answer."""
    head, classifier = backbone.task.head, backbone.classifier
    if classifier is None or not taught:
        return
    logits = backbone.encode([r.text for r in rows]) @ classifier.T
    error = head.error(logits, rows)
    right = head.right(logits, rows, backbone.labels) if error is None else error
    subject, numbers = f"backbone {backbone.name!r}", error is not None
    refuse_below_constant(subject, float(right.mean()), rows, taught=taught, numbers=numbers)


def _base(plan: BackbonePlan) -> tuple[Base, dict[str, bytes]]:
    """Return how a package references its base, and the files it includes.

    Raises:
        UsageError: If it is a hub name without a pinned revision.
        ManifestError: If a folder's files cannot compute by themselves.
        IntegrityError: If a package that should have the files is not installed.
    """
    kind, _, where = plan.source.partition(":")
    packaged = _model_in(where) if kind == "dist" else None
    path = folder_of(packaged) if packaged else Path(where).expanduser()
    if kind == "hf" and where.startswith((".", "/", "~")) and not path.is_dir():
        raise UsageError("no such folder", expected="a model's folder", found=where)
    if kind == "hf" and plan.revision is None and not path.is_dir():
        raise UsageError(
            f"{plan.source} is no folder here, so it is a hub name, and no revision is pinned",
            expected="the commit, with --revision",
            hint="Names move; a backbone is identified by content.",
        )
    if kind == "gguf":
        return Base(kind="file", id=str(path.resolve())), {}
    if not path.is_dir():
        return Base(kind="hub", id=where, revision=plan.revision or ""), {}
    leave = () if plan.task.unit.generates else (CHAT,)
    files = {
        p.name: p.read_bytes()
        for p in sorted(path.iterdir())
        if _carried(p) and p.name not in leave
    }
    check_model_files(files).unwrap(f"folder {where!r}")
    digests = {name: sha256_hex(data) for name, data in files.items()}
    return (
        (msgspec.structs.replace(packaged, files=digests), {})
        if packaged
        else (Base(kind="carried"), files)
    )


def _require_carried_vocabulary(bare: Backbone, folder: Path) -> None:
    """Refuse a folder whose tokenizer reads files that a package does not carry.

    Raises:
        UsageError: If there is one; the message names it.
    """
    names = {*getattr(bare.trunk.tokenizer, "vocab_files_names", dict[str, str]()).values()}
    if left := sorted(n for n in names if (folder / n).is_file() and not _carried(folder / n)):
        expected = f"files of the kinds {', '.join(CARRIED)}"
        raise UsageError("the tokenizer's vocabulary", expected=expected, found=", ".join(left))


def _carried(path: Path) -> bool:
    """Return whether a file of a model folder belongs in the package: no code, no pickles."""
    return path.is_file() and path.name.endswith(CARRIED)


def _model_in(where: str) -> Base:
    """Return the base that a model in an installed distribution is, without its files' digests.

    Args:
        where: ``DISTRIBUTION``, or ``DISTRIBUTION/FOLDER`` if it has several models.

    Raises:
        Refused: If it is not installed, or has no model or several.
    """
    name, _, inside = where.partition("/")
    dist = distribution_of(Base(kind="dist", id=name))
    folders = {f.parent for f in dist.files or () if f.name in {WEIGHTS, INDEX}}
    models = [str(f) for f in folders if (str(f) == inside if inside else f.parent not in folders)]
    if len(models) != 1:
        expected, hint = f"one folder with {WEIGHTS}", f"Name one of several: dist:{name}/FOLDER."
        there = listed(sorted(map(str, folders))) or "none"
        raise Refused(Violation("package_files", name, expected, there, hint))
    return Base(kind="dist", id=f"{canonical(name)}/{models[0]}", revision=f"=={dist.version}")
