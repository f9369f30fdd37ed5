"""Make a backbone package from any encoder: its files referenced or included, adapted or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ...registry.atomic import making
from ...registry.errors import UsageError
from ...registry.package.manifest import BackboneManifest, Base, Training
from ...registry.package.model_files import check_model_files
from ...registry.package.project import write_project
from ...registry.package.rules import CARRIED
from ..backbones.backbone import Backbone
from ..backbones.encoder import FeatureChoice
from ..backbones.pooling import PoolingChoice
from ..bus.head import require_answers
from ..bus.task import CLASSIFICATION, Task
from ..digests import library_versions
from ..types import BackgroundRow, Progress, Row, write_rows
from .adapt import AdaptSettings, adapt, delta
from .backbone_trial import BackboneTrial
from .baseline import refuse_below_constant
from .packaging import save_backbone
from .sentence_folder import SentenceFolder, lower_first

EVALUATED = 512
"""Most rows on which a base stage is evaluated."""

CHAT = "chat_template.jinja"
"""A file of a model folder that is only needed for text generation."""


def new_backbone(
    project: Path,
    backbone_id: str,
    source: str,
    *,
    revision: str | None = None,
    pooling: PoolingChoice | None = None,
    max_tokens: int | None = None,
    features: FeatureChoice = "wide",
    task: Task = CLASSIFICATION,
    rows: Sequence[Row] = (),
    settings: AdaptSettings | None = None,
    background: Sequence[BackgroundRow] = (),
    evaluation: Sequence[Row] = (),
    progress: Progress | None = None,
    trial: BackboneTrial | None = None,
) -> BackboneManifest:
    """Write a project with a backbone package, and try it.

    The package includes the files of a folder; it references a hub name by commit, a GGUF file by
    path. Without `rows` the backbone has no classifier, and experts have labels of their own.

    Args:
        project: The project's folder.
        backbone_id: The backbone's id.
        source: ``hf:NAME_OR_DIR`` or ``gguf:FILE``.
        revision: The commit to pin, for hub names.
        pooling: How the states of a text become one vector; by default as a sentence encoder's
            folder says, else ``mean``.
        max_tokens: Token limit above which texts are cut; by default the least of what a sentence
            encoder's folder, the tokenizer and the model's positions say.
        features: The parts of h, see `TextEncoder`. With `rows`, or if bus rows are words or
            tokens, always the last states.
        task: What is predicted; labels by default.
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
    _require_teachable(task, rows)
    base, files = _base(source, revision, task)  # refuse before anything is loaded or written
    # The other process starts first: it loads its libraries while this one does.
    with nullcontext(trial) if trial else BackboneTrial() as attempt, making(project):
        bare = _bare(
            backbone_id,
            source,
            revision=revision,
            pooling=pooling,
            max_tokens=max_tokens,
            # A classifier, as a language-model head, reads the last states.
            features=features if task.unit.whole and not rows else None,
            task=task,
            files=files,
        )
        finished = _adapt(bare, rows, settings=settings, progress=progress) if rows else bare
        summary = f"redhost backbone {backbone_id}"
        folder = write_project(project, kind="backbone", package_id=backbone_id, summary=summary)
        manifest = save_backbone(
            folder,
            backbone=finished,
            backbone_id=backbone_id,
            base=base,
            files=files,
            delta=delta(bare.trunk, finished.trunk) if rows else None,
            background=write_rows(background) if background else None,
            evaluation=write_rows(evaluation) if evaluation else None,
            training=_training(source, rows, settings),
        )
        attempt.run(folder, finished)
    _refuse_wreck(finished, (evaluation or rows)[:EVALUATED], taught=rows)
    return manifest


def _require_teachable(task: Task, rows: Sequence[Row]) -> None:
    """Refuse rows of a base stage that the task cannot be taught by."""
    if rows and not task.unit.whole:
        expected, found = "no rows for a base stage", f"{len(rows)} rows"
        problem = f"a backbone that {task.unit.does} is taken as it is"
        raise UsageError(problem, expected=expected, found=found)
    require_answers(task.head, rows)


def _bare(
    backbone_id: str,
    source: str,
    *,
    revision: str | None,
    pooling: PoolingChoice | None,
    max_tokens: int | None,
    features: FeatureChoice,
    task: Task,
    files: dict[str, bytes],
) -> Backbone:
    """Return the unadapted backbone of a source, under its new name.

    A tokenizer that has to put texts into lower case is replaced in the package's files.

    Raises:
        UsageError: If the task is text generation and the tokenizer has no start or end token, or
            if a package cannot carry the tokenizer's files, or what the folder says.
    """
    folder = SentenceFolder(str(Path(source.partition(":")[2]).expanduser()), revision)
    bare = Backbone.load(
        source,
        revision=revision,
        pooling=task.unit.pooling or pooling or folder.pooling or "mean",
        max_tokens=max_tokens,
        features=features,
        task=task,
    )
    if max_tokens is None:
        limits = [n for n in (folder.longest_input, bare.trunk.max_tokens) if n is not None]
        bare.trunk.max_tokens = min(limits, default=None)
    task.unit.check_trunk(bare.trunk)  # here, not when an expert's author first encodes a text
    if bare.trunk.pooling.dense and not task.unit.whole:
        expected = f"no dense layers of a backbone that {task.unit.does}"
        raise folder.refused(expected, "dense layers")
    _require_carried_vocabulary(bare, Path(folder.where))
    if folder.is_lowered:
        files |= lower_first(bare.trunk.tokenizer, carried=bool(files))
    return dataclasses.replace(bare, name=backbone_id, task=task)


def _training(source: str, rows: Sequence[Row], settings: AdaptSettings) -> Training:
    return Training(
        data=f"{len(rows)} labelled rows",
        seed=settings.seed,
        epochs=settings.epochs if rows else 0,
        versions=library_versions(),
        note=f"from {source}",
    )


def _refuse_wreck(backbone: Backbone, rows: Sequence[Row], *, taught: Sequence[Row]) -> None:
    """Refuse a base stage after which predictions are worse than a constant answer."""
    head, classifier = backbone.task.head, backbone.classifier
    if classifier is None or not taught:
        return
    logits = backbone.encode([r.text for r in rows]) @ classifier.T
    error = head.error(logits, rows)
    found = head.right(logits, rows, backbone.labels) if error is None else error
    who, numbers = f"backbone {backbone.name!r}", error is not None
    refuse_below_constant(who, float(found.mean()), rows, taught=taught, numbers=numbers)


def _adapt(
    backbone: Backbone,
    rows: Sequence[Row],
    *,
    settings: AdaptSettings,
    progress: Progress | None,
) -> Backbone:
    """Return the backbone after its base stage on labelled rows."""
    answers = [r.label for r in rows]
    labels = sorted(backbone.task.head.labels_in(answers))
    texts = [r.text for r in rows]
    return adapt(backbone, texts, answers, labels=labels, settings=settings, progress=progress)


def _base(source: str, revision: str | None, task: Task) -> tuple[Base, dict[str, bytes]]:
    """Return how a package references its base, and the files it includes.

    Raises:
        UsageError: If it is a hub name without a pinned revision.
        ManifestError: If a folder's files cannot compute by themselves.
    """
    kind, _, where = source.partition(":")
    path = Path(where).expanduser()
    if kind == "hf" and where.startswith((".", "/", "~")) and not path.is_dir():
        raise UsageError("no such folder", expected="a model's folder", found=where)
    if kind == "hf" and revision is None and not path.is_dir():
        raise UsageError(
            f"{source} is no folder here, so it is a hub name, and no revision is pinned",
            expected="the commit, with --revision",
            hint="Names move; a backbone is identified by content.",
        )
    if kind == "gguf":
        return Base(kind="file", id=str(path.resolve())), {}
    if not path.is_dir():
        return Base(kind="hub", id=where, revision=revision or ""), {}
    leave = () if task.unit.generates else (CHAT,)
    carried = (p for p in sorted(path.iterdir()) if _carried(p) and p.name not in leave)
    files = {p.name: p.read_bytes() for p in carried}
    check_model_files(files).unwrap(f"folder {where!r}")
    return Base(kind="carried"), files


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
