"""Commands for authors of experts: new-expert, train-expert, pack."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from redhost.commands.common import (
    backbone_option,
    bar,
    composition_options,
    device_option,
    field_options,
    home_option,
    json_option,
    print_json,
)
from redhost.registry.errors import MissingError, SettingsError, UnknownNameError, UsageError
from redhost.registry.package.forms import DEFAULT_TASK
from redhost_author.options import seed_option

from .trained import print_trained

if TYPE_CHECKING:
    from redhost.core.types import Row
    from redhost.registry.package.discover import Package
    from redhost.registry.package.manifest import ExpertManifest

    from .project import ExpertPlan
    from .training.data import DataSplits


class ProjectPath(click.Path):
    """The folder of a project, which has to be there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder; for one that is not there, say how a project is made."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as e:
            message = f"{e.message} 'redhost new-expert NAME' makes one in ./red-expert-NAME."
            raise click.BadParameter(message, ctx, param) from e


PROJECT = ProjectPath(path_type=Path, file_okay=False, exists=True)


@click.command("new-expert")
@click.argument("name")
@backbone_option
@click.option(
    "--form",
    metavar="FORM",
    help="residual: two layers without biases; linear: one layer; mlp: two layers with biases; "
    "lora: an adapter inside the blocks; words: reads the words of texts too (default: with labels "
    "of its own, words with redhost[words] on a backbone of texts, else linear or residual, "
    "whichever is better on validation rows; otherwise residual); or a trusted plugin's.",
)
@click.option(
    "--rank",
    type=click.IntRange(min=1),
    help="R (default: a quarter of the width; 8 for an adapter).",
)
@click.option(
    "--blocks",
    type=click.IntRange(min=1),
    help="With --form lora: number of top blocks it adapts (default: the upper half).",
)
@click.option(
    "--targets",
    metavar="NAME,…",
    help="With --form lora: linear layers of a block, by the end of their names (default: all).",
)
@click.option(
    "--writes",
    type=click.Choice(["hidden", "logits", "labels"]),
    help="Output: through the backbone's classifier (hidden, logits), or labels of its own "
    "(default; for generation: hidden).",
)
@click.option(
    "--reads-tap",
    metavar="LAYER",
    default="final",
    show_default=True,
    help="Read at a block of the trunk, by number or name.",
)
@click.option(
    "--writes-tap",
    metavar="LAYER",
    default="final",
    show_default=True,
    help="Write to a block of the trunk, by number or name; later blocks read the result.",
)
@click.option(
    "--card",
    type=click.Choice(["texts", "vectors", "statistics", "none"]),
    help="Routing data in the package, so that any host can route to it (default: vectors with "
    "sums of the rows; texts if it has no labels of its own).",
)
@click.option(
    "--epsilon",
    type=click.FloatRange(min=0, max=100, min_open=True),
    help="With --card statistics: add noise to its sums, which makes them (ε, δ)-differentially "
    "private (default: none).",
)
@click.option(
    "--delta",
    type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    default=1e-5,
    show_default=True,
    help="δ of that noise: use less than 1 / number of rows.",
)
@click.option(
    "--from",
    "source",
    metavar="peft:DIR",
    help="A LoRA adapter saved by PEFT; it is not trained further.",
)
@click.option("--data", metavar="FILE", help="Labelled rows: train it on them at once.")
@field_options
@composition_options
@device_option
def new_expert(
    *,
    name: str,
    backbone: str | None,
    form: str | None,
    rank: int | None,
    blocks: int | None,
    targets: str | None,
    writes: Literal["hidden", "logits", "labels"] | None,
    reads_tap: str,
    writes_tap: str,
    card: Literal["texts", "vectors", "statistics", "none"] | None,
    epsilon: float | None,
    delta: float,
    source: str | None,
    data: str | None,
    text_field: str,
    label_field: str,
    home: Path | None,
    device: str | None,
) -> None:
    """Make an expert's project, ready to be trained.

    It is written to ./red-expert-NAME. With --data it is trained, as by 'train-expert'; with --from
    as well it needs no training: the package gets an adapter and a card. With --question it answers
    that question, and competes only with experts that answer it too.
    """
    from .forms import form_named
    from .project import ExpertPlan, check_noise

    project = _fresh("expert", name)
    _check_options(writes, reads_tap, writes_tap, adapter=form == "lora", of_one=blocks or targets)
    plan = ExpertPlan(
        id=name,
        question=_question(home),
        backbone=backbone,
        form=form and form_named(form),
        rank=rank,
        blocks=blocks,
        targets=tuple(targets.split(",")) if targets else None,
        writes=writes,
        reads_tap=reads_tap,
        writes_tap=writes_tap,
        card=card,
        epsilon=epsilon,
        delta=delta,
    )
    check_noise(plan)
    if source is not None:
        from redhost.commands.lazy import import_beside

        value, fields = "redhost_peft.cli:import_project", (text_field, label_field)
        imported = import_beside("export", value, needed_for="new-expert --from")
        imported(project, plan, source, data, fields=fields, home=home, device=device)
        return
    _begin(project, plan, data, fields=(text_field, label_field), home=home, device=device)


def _begin(
    project: Path,
    plan: ExpertPlan,
    data: str | None,
    *,
    fields: tuple[str, str],
    home: Path | None,
    device: str | None,
) -> None:
    """Write a project and, if rows are named, train its expert; else print how."""
    _require_backbone(plan.backbone)
    if data is not None:
        with _going_on(project, plan, data, fields=fields, home=home):
            with _writing(project, plan):  # nothing stays of it if the rows cannot be read
                package, splits = _read(project, plan, home, data, fields=fields)
            click.echo(project)
            _train(project, splits, package=package, home=home, device=device)
        return
    with _writing(project, plan):
        pass
    click.echo(project)
    line, option = _backbone_of(plan, home)
    train = f"redhost train-expert {shlex.quote(str(project))} --data YOUR.jsonl{option}"
    click.echo(f"{line}next: {train}")


@contextmanager
def _going_on(
    project: Path, plan: ExpertPlan, data: str, *, fields: tuple[str, str], home: Path | None
) -> Iterator[None]:
    """Train a new project in the block; after Ctrl-C it stays, and the next command is printed."""
    from redhost.registry.home.questions import root_of

    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        if not project.exists():  # stopped while the rows were read, or torch was loaded
            with _writing(project, plan):
                pass
        words = ["redhost", "train-expert", str(project), "--data", data]
        for name, field in zip(("text", "label"), fields, strict=True):
            words += [] if field == name else [f"--{name}-field", field]
        words += [] if home is None else ["--home", str(root_of(home))]
        click.echo(f"next: {shlex.join(words)}", err=True)
        raise


@contextmanager
def _writing(project: Path, plan: ExpertPlan) -> Iterator[None]:
    """Write a project; if the block fails, it is removed again."""
    from redhost_author.new_folder import making

    from .project import write_plan, write_project

    with making(project):
        write_project(
            project, kind="expert", package_id=plan.id, summary=f"redhost expert {plan.id}"
        )
        write_plan(project, plan)
        yield


def _read(
    project: Path,
    plan: ExpertPlan,
    home: Path | None,
    data: str,
    *,
    valid: str | None = None,
    backbone: str | None = None,
    fields: tuple[str, str],
) -> tuple[Package, DataSplits]:
    """Return the backbone of a project, and rows from files; `fields` are of text and label."""
    from .project import backbone_for

    package = backbone_for(project, plan, home=home, backbone=backbone)
    read = rows_for(package, text_field=fields[0], label_field=fields[1])
    given, held_out = read(data), read(valid) if valid else None
    # Loads torch: after the files are read.
    from .training.recipes import split_for

    return package, split_for(package, given, valid=held_out)


def _train(
    project: Path,
    splits: DataSplits,
    *,
    package: Package,
    epochs: int | None = None,
    seed: int = 0,
    home: Path | None,
    device: str | None,
    as_json: bool = False,
) -> None:
    """Train the expert of a project, and print the result."""
    from .training.recipes import train_project

    with bar("train-expert") as progress:
        trained = train_project(
            project,
            splits,
            package=package,
            epochs=epochs,
            seed=seed,
            home=home,
            device=device,
            progress=progress,
        )
    if as_json:
        print_json(trained.manifest)
        return
    print_trained(trained)
    click.echo(f"next: redhost pack {shlex.quote(str(project))}")


def _backbone_of(plan: ExpertPlan, home: Path | None) -> tuple[str, str]:
    """Return a line on the backbone, if several are installed, and what training needs with it."""
    from redhost.registry.home.questions import home_of
    from redhost.registry.package.discover import discover
    from redhost.registry.queries.settings import choose_backbone, resolve_home, wanted_backbone

    installed = discover("backbone")
    if len(installed) < 2 or plan.backbone is not None:  # noqa: PLR2004
        return "", ""
    try:
        where = home_of(resolve_home(home), plan.question)
        chosen = choose_backbone(installed, wanted_backbone(where))
    except SettingsError as e:
        return f"backbone   none yet: {e}\n", " --backbone NAME"
    return f"backbone   {chosen}, which this home or project names\n", ""


def _require_backbone(name: str | None) -> None:
    """Require the backbone, if one is named: without it the expert cannot be trained.

    Raises:
        UsageError: If no installed backbone has this name.
    """
    from redhost.registry.package.discover import discover
    from redhost.registry.queries.settings import choose_backbone

    try:
        if name is not None:
            choose_backbone(discover("backbone"), name)
    except (MissingError, UnknownNameError) as e:
        raise UsageError(
            f"backbone {name!r} is not installed",
            expected="one that is, to train the expert on",
            hint=f"Install its package, or leave out --backbone until then. {e.hint}",
        ) from e


def _question(home: Path | None) -> str | None:
    """Return the question that a home belongs to, if any."""
    from redhost.registry.home.questions import question_of

    return question_of(home) if home else None


def _check_options(
    writes: str | None, reads_tap: str, writes_tap: str, *, adapter: bool, of_one: object
) -> None:
    """Refuse incompatible options of `new-expert`; `of_one` are those for adapters only."""
    if writes_tap != "final" and (writes != "hidden" or reads_tap == "final"):
        raise UsageError(
            f"--writes-tap {writes_tap} needs states to read and hidden states to write",
            expected="--reads-tap of the same block or an earlier one, and --writes hidden",
            found=f"--reads-tap {reads_tap}, --writes {writes or 'labels'}",
        )
    if of_one and not adapter:
        raise UsageError("--blocks and --targets are an adapter's", expected="--form lora as well")


@click.command("train-expert")
@click.argument("project", type=PROJECT)
@click.option("--data", required=True, metavar="FILE", help="JSON lines, CSV, TSV, Parquet, or -.")
@click.option("--valid", metavar="FILE", help="Validation rows (default: a tenth of the data).")
@field_options
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="Most passes over the data (default: 200; for generation, 12).",
)
@seed_option
@backbone_option
@home_option
@device_option
@json_option("registry.package.manifest.ExpertManifest")
def train_expert(
    *,
    project: Path,
    data: str,
    valid: str | None,
    text_field: str,
    label_field: str,
    epochs: int | None,
    seed: int,
    backbone: str | None,
    home: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Train the expert of PROJECT, alone, on your data.

    After Ctrl-C the same command continues where it stopped.
    """
    from .project import read_plan

    fields = (text_field, label_field)
    package, splits = _read(
        project, read_plan(project), home, data, valid=valid, backbone=backbone, fields=fields
    )
    _train(
        project,
        splits,
        package=package,
        epochs=epochs,
        seed=seed,
        home=home,
        device=device,
        as_json=as_json,
    )


def rows_for(
    package: Package, *, text_field: str, label_field: str
) -> Callable[[str], Sequence[Row]]:
    """Return a function that reads an author's rows for the task of a backbone."""
    from redhost.core.training.rows import read_rows
    from redhost.registry.queries.settings import installed_backbone

    installed = installed_backbone(package).value
    task = installed[0].task if installed else DEFAULT_TASK
    return partial(read_rows, task=task, text_field=text_field, label_field=label_field)


@click.command()
@click.argument("projects", metavar="PROJECT...", nargs=-1, required=True, type=PROJECT)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: DIR/dist.")
@click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="KEY.pem",
    help="Sign the wheel with this private key: writes NAME.whl.sig next to it.",
)
@backbone_option
@home_option
def pack(
    *,
    projects: tuple[Path, ...],
    out: Path | None,
    key: Path | None,
    backbone: str | None,
    home: Path | None,
) -> None:
    """Check each PROJECT and build its wheel."""
    from redhost_author.disclosure import card_discloses
    from redhost_author.signing import make_signer

    sign, wheels = make_signer(key) if key else None, list[str]()
    manifests = [_require_valid(project, home=home, backbone=backbone) for project in projects]
    for project, manifest in zip(projects, manifests, strict=True):
        wheels.append(shlex.quote(str(_build(project, out or project / "dist", sign))))
        if manifest is not None:
            click.echo(card_discloses(manifest))
    if len(wheels) > 1:
        click.echo(f"next: pip install --no-deps {' '.join(wheels)} && redhost recompose")
    else:
        click.echo(f"next: {'redhost add' if manifests[0] else 'pip install'} {wheels[0]}")


def _build(project: Path, folder: Path, sign: Callable[[Path], Path] | None) -> Path:
    """Build a project's wheel in a folder, and print what was written and removed."""
    from redhost_author.wheels import build_wheel

    signed = {*folder.glob("*.whl.sig")}
    wheel = build_wheel(project, folder)
    if sign:
        click.echo(sign(wheel))
    for old in signed - {*folder.glob("*.whl.sig")}:
        click.echo(f"removed {old}: it is of another build; --sign KEY.pem signs this one")
    click.echo(wheel)
    return wheel


def _fresh(kind: Literal["backbone", "expert"], name: str) -> Path:
    """Return the folder of a new project.

    Raises:
        UsageError: If the name is not a valid id, or the folder exists.
    """
    from .project import check_free, check_id

    check_id(name)
    project = Path(f"red-{kind}-{name}")
    check_free(project)
    return project


def _require_valid(
    project: Path, *, home: Path | None, backbone: str | None
) -> ExpertManifest | None:
    """Check a project's package against its folder and, if installed, its backbone.

    Returns:
        Its manifest; None if the project is a backbone's own.

    Raises:
        ContractError: With its first violation, if it has any.
    """
    from redhost.registry.queries.settings import resolve_home
    from redhost_author.strict import unnamed_files
    from redhost_author.targets import resolve_targets, static_check

    [target] = resolve_targets([str(project)], home=resolve_home(home), backbone=backbone)
    if violations := (*static_check(target), *unnamed_files(target)):
        raise violations[0].error(f"{project} cannot be packed")
    return target.files.manifest if target.files else None
