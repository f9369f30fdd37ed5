"""Train many experts from a plan: a job each, the same bytes as one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ...registry.atomic import write_atomic
from ...registry.discover import discover
from ...registry.errors import PluginError, UsageError
from ...registry.manifest import BackboneManifest, ExpertManifest, parse_expert
from ...registry.project import ExpertPlan, package_in, read_plan
from ...registry.settings import choose_backbone
from ..authoring.expert_run import ExpertSettings
from ..authoring.tables import read_table
from ..composing.workspace import read_package
from ..extending.plugins import Plugins
from ..progress import Progress
from ..rows import parse_rows, write_rows
from .crew import Crew
from .engine import Files, Job, Jobs
from .kept import Kept

__all__ = ["Trained", "Training", "read_plan_file", "train_many"]


class Training(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a plan: what `redhost train-expert` would be told.

    Attributes:
        dir: The expert's project.
        data: Its labelled rows.
        valid: Validation rows; by default a tenth of the data.
        text_field: Where the text stands.
        label_field: Where the label stands.
        epochs: Passes over the rows at most.
        seed: Where randomness comes from.
    """

    dir: str
    data: str
    valid: str | None = None
    text_field: str = "text"
    label_field: str = "label"
    epochs: Annotated[int, Meta(ge=1)] = 200
    seed: Annotated[int, Meta(ge=0)] = 0


class Trained(Struct, frozen=True, kw_only=True):
    """What became of a line.

    Attributes:
        dir: The expert's project.
        id: The expert's id.
        error: Why it was not trained; None if it was.
        manifest: What was written.
    """

    dir: str
    id: str
    error: str | None = None
    manifest: ExpertManifest | None = None


def read_plan_file(path: Path) -> list[Training]:
    """Read a plan, a JSON object a line; its paths start from the folder it lies in.

    Raises:
        UsageError: If it cannot be read, has no lines, or names a project twice.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read {path}", found=e.strerror or str(e)) from e
    lines = parse_rows(data, Training, source=str(path))
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
    trainings: Sequence[Training],
    *,
    crew: Crew,
    plugins: Plugins,
    kept: Kept | None = None,
    progress: Progress | None = None,
) -> list[Trained]:
    """Train experts and write each into its project as soon as it is done.

    Args:
        trainings: The lines of a plan.
        crew: Who trains.
        plugins: The host's plugins: none of them may make backbones, jobs do that themselves.
        kept: Where finished experts lie: what is there is not trained again.
        progress: Called with (experts done, experts in all).

    Returns:
        What became of each line, in their order.
    """
    _require_built_in(plugins)
    jobs = Jobs()
    shelf: dict[str | None, _Shelved] = {}
    lines: dict[str, Training] = {}
    for line in trainings:
        plan = read_plan(Path(line.dir))
        package_in(Path(line.dir))  # no training without a place for what it makes
        if plan.backbone not in shelf:
            shelf[plan.backbone] = _shelve(jobs, plan.backbone)
        lines[_add(jobs, line, plan, shelf[plan.backbone]).name] = line
    done: dict[str, Trained] = {}

    def take(job: Job, made: Files) -> None:
        line = lines[job.name]
        done[line.dir] = _write(Path(line.dir), job.arguments["plan"]["id"], made)

    for failure in crew.run(jobs, take, kept=kept, progress=progress):
        line, plan_id = lines[failure.job.name], failure.job.arguments["plan"]["id"]
        done[line.dir] = Trained(dir=line.dir, id=plan_id, error=failure.reason)
    return [done[line.dir] for line in trainings]


@dataclass(frozen=True)
class _Shelved:
    """A backbone that jobs share."""

    manifest: BackboneManifest
    inputs: dict[str, str]


def _shelve(jobs: Jobs, name: str | None) -> _Shelved:
    files = read_package(choose_backbone(discover("backbone"), name))
    return _Shelved(files.manifest, jobs.put("backbone", files.files))


def _add(jobs: Jobs, line: Training, plan: ExpertPlan, backbone: _Shelved) -> Job:
    if backbone.manifest.task == "generation":
        raise UsageError(
            f"{line.dir} is for backbone {backbone.manifest.id!r}, which generates text",
            expected="a backbone that answers labels or numbers",
            found="generation",
            hint="Train one by one with 'redhost train-expert'.",
        )
    read = partial(
        read_table,
        text_field=line.text_field,
        label_field=line.label_field,
        numbers=backbone.manifest.task == "regression",
    )
    rows = {"data": write_rows(read(line.data))}
    if line.valid is not None:
        rows["valid"] = write_rows(read(line.valid))
    settings = ExpertSettings(
        form=plan.form,
        space=plan.writes or "labels",
        rank=plan.rank,
        epochs=line.epochs,
        seed=line.seed,
    )
    arguments = {"plan": msgspec.to_builtins(plan), "settings": asdict(settings)}
    inputs = {**backbone.inputs, **jobs.put("rows", rows)}
    return jobs.add(f"{line.dir} (expert {plan.id!r})", "train-expert", arguments, inputs)


def _write(project: Path, expert_id: str, made: Files) -> Trained:
    """Write a package, the manifest last: it vouches for the others."""
    package = package_in(project)
    for name in sorted(made, key=lambda n: n == "expert.json"):
        write_atomic(package / name, made[name])
    manifest = parse_expert(made["expert.json"])
    if not isinstance(manifest, ExpertManifest):
        return Trained(dir=str(project), id=expert_id, error=manifest.reason)
    return Trained(dir=str(project), id=expert_id, manifest=manifest)


def _require_built_in(plugins: Plugins) -> None:
    makers = plugins.providers("redhost_make_backbone")
    if makers:
        raise PluginError(
            f"plugin {makers[0]!r} makes backbones",
            expected="the built-in ones, which any worker can make",
            hint="Train one by one with 'redhost train-expert', which asks plugins.",
        )
