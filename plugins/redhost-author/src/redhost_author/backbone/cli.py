"""The command new-backbone: a backbone package from any model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from redhost.commands.common import bar, field_options
from redhost.registry.errors import PluginError, UsageError
from redhost.registry.package.forms import DEFAULT_TASK, TASKS
from redhost_author.options import seed_option

if TYPE_CHECKING:
    from redhost.core.bus.task import Task
    from redhost.core.plugins.manager import Plugins
    from redhost.registry.package.manifest import BackboneManifest, Features, PoolingMode


def _features(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> Features | Literal["wide"] | None:
    """Parse the parts of h: a word, or layers plus the number of entries tokens are hashed to."""
    from redhost.registry.package.manifest import Features

    if value in {"wide", "last"}:
        return "wide" if value == "wide" else None
    layers, _, tokens = value.partition("+")
    try:
        spec = {"layers": [int(n) for n in layers.split(",")], "tokens": int(tokens or 0)}
        return msgspec.convert(spec, Features)
    except ValueError as e:  # including msgspec's
        expected = "wide, last, or layers such as 0,6+1024"
        raise UsageError("--features", expected=expected, found=repr(value)) from e


@click.command("new-backbone")
@click.argument("name")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="SOURCE",
    help="hf:DIR_OR_NAME, gguf:FILE or dist:PACKAGE.",
)
@click.option("--revision", help="The commit to pin, for hub names.")
@click.option(
    "--pooling",
    type=click.Choice(["first", "last", "max", "mean", "mean-sqrt", "weighted-mean"]),
    help="How the states of a text are pooled (default: the folder's setting, else mean).",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Truncate longer texts (default: the folder's setting, else the model's longest input).",
)
@click.option(
    "--features",
    metavar="SPEC",
    default="wide",
    show_default=True,
    callback=_features,
    help="Input of the experts. last: the last states; or layers (0: below the first block) and "
    "the width of hashed token counts, such as 0,6+1024; wide: first, last and tokens. With "
    "--data, last.",
)
@click.option(
    "--last-blocks",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of top blocks that the base stage adapts, with --data.",
)
@click.option("--data", metavar="FILE", help="Labelled rows for the base stage.")
@click.option("--background", metavar="FILE", help="Texts that experts leave alone, one a line.")
@click.option("--evaluation", metavar="FILE", help="Held-out labelled rows.")
@field_options
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Passes over the data of the base stage.",
)
@click.option(
    "--task",
    metavar="TASK",
    shell_complete=lambda _context, _option, typed: [t for t in TASKS if t.startswith(typed)],
    default=DEFAULT_TASK,
    show_default=True,
    help="What the backbone and its experts answer: one of several labels, any number of labels "
    "(multi-label), labelled spans (spans), the next token (generation), a number (regression), or "
    "a trusted plugin's task.",
)
@click.option(
    "--resolution",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="For regression: the smallest difference that matters.",
)
@seed_option
def new_backbone(
    *,
    name: str,
    source: str,
    revision: str | None,
    pooling: PoolingMode | None,
    max_tokens: int | None,
    features: Features | Literal["wide"] | None,
    last_blocks: int,
    data: str | None,
    background: str | None,
    evaluation: str | None,
    epochs: int,
    task: str,
    resolution: float,
    seed: int,
    **fields: str,
) -> None:
    """Make a backbone package from any model.

    It is written to ./red-backbone-NAME.
    """
    from redhost.core.training.rows import read_rows, read_texts

    project = _fresh(name)
    if last_blocks and data is None:
        raise UsageError("--last-blocks adapts blocks to data", expected="--data FILE as well")
    rows, held_out = (read_rows(f, task=task, **fields) if f else () for f in (data, evaluation))
    others = read_texts(background) if background else ()
    from redhost.core.plugins.manager import Plugins  # loads torch: after the files are read
    from redhost_author.backbone import making
    from redhost_author.backbone.adapt import AdaptSettings

    plan = making.BackbonePlan(
        id=name,
        source=source,
        revision=revision,
        pooling=pooling,
        max_tokens=max_tokens,
        features=features,
        task=_task(Plugins(), task, resolution=resolution),
    )
    with bar("new-backbone") as progress:
        manifest = making.new_backbone(
            project,
            plan,
            rows=rows,
            settings=AdaptSettings(last_blocks=last_blocks, epochs=epochs, seed=seed),
            background=others,
            evaluation=held_out,
            progress=progress,
        )
    _print_backbone(project, manifest, instead=plan.task.unit.instead)


def _task(plugins: Plugins, name: str, *, resolution: float) -> Task:
    """Return the task that was typed.

    Raises:
        UsageError: If there is none of that name, and no plugin of this project has it.
    """
    try:
        return plugins.task(name, resolution=resolution)
    except PluginError as e:
        if name in TASKS:
            raise
        raise UsageError(e.problem, hint=f"{e.hint} Known: {', '.join(sorted(TASKS))}.") from e


def _fresh(name: str) -> Path:
    """Return the folder of a new project.

    Raises:
        UsageError: If the name is not a valid id, or the folder exists.
    """
    from redhost_author.project import check_free, check_id

    check_id(name)
    project = Path(f"red-backbone-{name}")
    check_free(project)
    return project


def _print_backbone(project: Path, manifest: BackboneManifest, *, instead: str) -> None:
    from redhost.registry.errors import short

    outputs = instead or f"{len(manifest.labels)} labels"
    summary = f"width {manifest.width}, {outputs}, fingerprint {short(manifest.fingerprint)}"
    click.echo(f"{project}: {summary}")
    click.echo(f"next: pip install ./{project}")
