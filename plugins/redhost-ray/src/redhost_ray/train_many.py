"""Train many experts from a plan: one job each, with the same bytes as sequential training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from redhost_author.project import ExpertPlan, backbone_for, package_in, read_plan
from redhost_author.training.packaging import write_package

from redhost.core.model.build import backbone_makers, read_package
from redhost.core.plugins.manager import Plugins
from redhost.core.training.rows import read_table
from redhost.core.types import Progress, parse_rows, write_rows
from redhost.registry.errors import PluginError, UsageError
from redhost.registry.package.discover import Package
from redhost.registry.package.manifest import BackboneManifest, ExpertManifest, parse_expert
from redhost_ray.cache import JobCache
from redhost_ray.functions import train_expert
from redhost_ray.job import Job, JobBatch, JobFiles
from redhost_ray.pool import WorkerPool


class TrainingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a plan: the options of `redhost train-expert`.

    Attributes:
        dir: The expert's project.
        data: Its labelled rows.
        valid: Validation rows; by default a tenth of the data.
        text_field: Field of the text.
        label_field: Field of the label.
        epochs: Passes over the rows at most; by default as for `train_project`.
        seed: The random seed.
    """

    dir: str
    data: str
    valid: str | None = None
    text_field: str = "text"
    label_field: str = "label"
    epochs: Annotated[int, Meta(ge=1)] | None = None
    seed: Annotated[int, Meta(ge=0)] = 0


class TrainingOutcome(Struct, frozen=True, kw_only=True):
    """The result of a line.

    Attributes:
        dir: The expert's project.
        id: The expert's id.
        error: Why it was not trained; None if it was.
        manifest: The manifest of the package that was written.
    """

    dir: str
    id: str
    error: str | None = None
    manifest: ExpertManifest | None = None


def read_plan_file(path: Path) -> list[TrainingRequest]:
    """Read a plan with one JSON object per line; its paths are relative to the plan's folder.

    Raises:
        UsageError: If it cannot be read, has no lines, or names a project twice.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read {path}", found=e.strerror or str(e)) from e
    lines = parse_rows(data, TrainingRequest, source=str(path))
    if not lines:
        raise UsageError(f"{path} has no lines", expected='{"dir": …, "data": …}, one a line')
    seen: set[Path] = set()
    found = []
    for line in lines:
        project = path.parent / line.dir
        if project.resolve() in seen:
            raise UsageError(f"{path} trains {line.dir} twice")
        seen.add(project.resolve())
        rows = str(path.parent / line.data)
        valid = None if line.valid is None else str(path.parent / line.valid)
        found.append(msgspec.structs.replace(line, dir=str(project), data=rows, valid=valid))
    return found


def train_many(
    trainings: Sequence[TrainingRequest],
    *,
    pool: WorkerPool,
    plugins: Plugins,
    cache: JobCache | None = None,
    home: Path | None = None,
    backbone: str | None = None,
    progress: Progress | None = None,
) -> list[TrainingOutcome]:
    """Train experts, and write each into its project as soon as it is trained.

    Args:
        trainings: The lines of a plan.
        pool: The worker pool.
        plugins: The host's plugins. None of them may make backbones, because jobs only make
            built-in ones.
        cache: The cache of finished experts, which are not trained again.
        home: The state folder.
        backbone: The backbone to train on; by default as for `train_project`.
        progress: Called with (experts done, experts in all).

    Returns:
        The result of each line, in order.
    """
    jobs = JobBatch()
    backbones: dict[Package, tuple[BackboneManifest, dict[str, str]]] = {}
    lines: dict[str, TrainingRequest] = {}
    for line in trainings:
        plan = read_plan(Path(line.dir))
        package_in(Path(line.dir))  # refuse before training if there is no package folder
        package = backbone_for(Path(line.dir), plan, home=home, backbone=backbone)
        if package not in backbones:
            files = read_package(package)
            _require_built_in(files.manifest, plugins)
            backbones[package] = files.manifest, jobs.put("backbone", files.files)
        lines[_add(jobs, line, plan, *backbones[package]).name] = line
    done: dict[str, TrainingOutcome] = {}

    def on_result(job: Job, made: JobFiles) -> None:
        line = lines[job.name]
        done[line.dir] = _write(Path(line.dir), job.arguments["plan"]["id"], made)

    for failure in pool.run(jobs, on_result, cache=cache, progress=progress):
        line, plan_id = lines[failure.job.name], failure.job.arguments["plan"]["id"]
        done[line.dir] = TrainingOutcome(dir=line.dir, id=plan_id, error=failure.reason)
    return [done[line.dir] for line in trainings]


def _add(
    jobs: JobBatch,
    line: TrainingRequest,
    plan: ExpertPlan,
    backbone: BackboneManifest,
    inputs: Mapping[str, str],
) -> Job:
    task = Plugins().task(backbone.task)
    if not task.unit.whole:
        raise UsageError(
            f"{line.dir} is for backbone {backbone.id!r}, which {task.unit.does}",
            expected="a backbone that answers labels or numbers",
            found=task.name,
            hint="Train one by one with 'redhost train-expert'.",
        )
    read = partial(
        read_table, text_field=line.text_field, label_field=line.label_field, head=task.head
    )
    rows = {"data": write_rows(read(line.data))}
    if line.valid is not None:
        rows["valid"] = write_rows(read(line.valid))
    how = {"epochs": line.epochs, "seed": line.seed}
    arguments = {"plan": msgspec.to_builtins(plan), **how}
    inputs = {**inputs, **jobs.put("rows", rows)}
    return jobs.add(f"{line.dir} (expert {plan.id!r})", train_expert, arguments, inputs)


def _write(project: Path, expert_id: str, made: JobFiles) -> TrainingOutcome:
    write_package(package_in(project), made, "expert.json")
    parsed = parse_expert(made["expert.json"])
    error = parsed.violations[0].reason if parsed.violations else None
    return TrainingOutcome(dir=str(project), id=expert_id, manifest=parsed.value, error=error)


def _require_built_in(manifest: BackboneManifest, plugins: Plugins) -> None:
    makers = backbone_makers(manifest, plugins=plugins, device="cpu")
    if makers:
        raise PluginError(
            f"plugin {min(makers)!r} makes backbones",
            expected="the built-in ones, which any worker can make",
            hint="Train one by one with 'redhost train-expert', which asks plugins.",
        )
