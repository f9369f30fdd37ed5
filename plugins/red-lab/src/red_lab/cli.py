"""`redhost lab …`: the experiments as commands. Torch is imported inside commands only."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from red_lab.bench.command import bench
from red_lab.matched import matched
from red_lab.readme import refresh_here
from red_lab.red import red
from red_lab.robust import robust
from red_lab.seeds import seeds
from red_lab.study import WORK, out_option, seeds_option
from red_lab.text import text
from redhost.commands.lazy import PluginGroup
from redhost.core.types import MAX_SEED

__all__ = [
    "StudyGroup",
    "build",
    "cost",
    "generative",
    "hotswap",
    "lab",
    "results",
    "shrink",
    "toy",
]

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


class StudyGroup(PluginGroup):
    """The lab's own commands, and studies of other packages."""

    entry_points = "redhost.studies"


@click.group(cls=StudyGroup)
def lab() -> None:
    """Build the tiny backbone and its experts; reproduce the results."""


@lab.command()
@click.option(
    "--split",
    "number",
    type=click.IntRange(0, 4),
    default=0,
    show_default=True,
    help="Number of the split: which pairs are held out.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=0,
    show_default=True,
    help="Random seed.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the project folders, e.g. plugins.",
)
@WORK
def build(*, number: int, seed: int, out: Path, work: Path) -> None:
    """Make the tiny backbone of a split and train its five experts.

    `redhost lab build --out plugins` makes the shipped packages.
    """
    from red_lab.base import build_all

    for folder in build_all(number, seed=seed, out=out, work=work / f"split{number}"):
        click.echo(str(folder))


@lab.command()
@click.option(
    "--splits", type=click.IntRange(1, 5), default=5, show_default=True, help="Number of splits."
)
@out_option("tiny-ranges")
@WORK
def results(*, splits: int, out: Path, work: Path) -> None:
    """Measure the shipped set-up over splits, one backbone each."""
    from red_lab.results import run

    click.echo(run(splits=splits, out=out, work=work))
    refresh_here()


@lab.command()
@click.option(
    "--backbone",
    type=click.Choice(["tiny", "smollm2"]),
    default="tiny",
    show_default=True,
    help="A tiny model that is pretrained on general text, or SmolLM2-135M.",
)
@seeds_option(3)
@out_option("generative")
@WORK
def generative(*, backbone: str, seeds: int, out: Path, work: Path) -> None:
    """Compare routers and monoliths of a causal language model."""
    from red_lab.generative import run

    say = partial(click.echo, err=True)
    click.echo(run(source=backbone, seeds=seeds, out=out, work=work, say=say))


@lab.command()
@seeds_option(5)
@out_option("toy")
def toy(*, seeds: int, out: Path) -> None:
    """Measure which toy experts can be mixed, on sums of two."""
    from red_lab.toy import run

    click.echo(run(seeds=seeds, out=out))


@lab.command()
@click.option(
    "--config",
    type=click.Choice(["qwen3-0.6b", "smollm2-135m", "tiny"]),
    required=True,
    help="The backbone's shape.",
)
@click.option(
    "--experts", type=click.IntRange(min=1), default=5, show_default=True, help="Number of experts."
)
@click.option("--rank", type=click.IntRange(min=1), help="Rank of each expert (default: D/4).")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="The device.",
)
@click.option(
    "--queries",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Number of texts to answer.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Texts at a time."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of measurements of each system.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads on a CPU; several slow down small products on a busy machine.",
)
@out_option("cost")
def cost(
    *,
    config: str,
    experts: int,
    rank: int | None,
    device: str,
    queries: int,
    batch: int,
    rounds: int,
    threads: int,
    out: Path,
) -> None:
    """Count parameters, time and memory on a backbone of full size.

    Its weights are random.
    """
    import torch

    from red_lab.cost import Load, measure, run

    torch.set_num_threads(threads)
    load = Load(
        config=config,
        experts=experts,
        rank=rank,
        device=device,
        queries=queries,
        batch=batch,
        rounds=rounds,
    )
    click.echo(run(measure(load), out=out))


@lab.command()
@click.option("--router", default="evidence", show_default=True, help="The router's kind.")
@out_option("hotswap")
def hotswap(*, router: str, out: Path) -> None:
    """Remove, add back and replace every shipped expert.

    Measures accuracy, seconds and changed bytes.

    Packages are actually disabled, installed and uninstalled, in a temporary folder and home; the
    installed packages stay unchanged.
    """
    from red_lab.hotswap import run

    click.echo(run(router=router, out=out))


@lab.command()
@click.option(
    "--in", "source", type=FILE, required=True, help="A whole model: .pt or .safetensors."
)
@click.option(
    "--trainable-last-n-layers",
    "last",
    type=click.IntRange(min=0),
    required=True,
    help="Number of last blocks that were trained.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The safetensors file to write (default: FILE-small.safetensors next to the input).",
)
@click.option(
    "--base", type=FILE, help="The base model; tensors equal to its own are dropped as well."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def shrink(*, source: Path, last: int, out: Path | None, base: Path | None, as_json: bool) -> None:
    """Shrink a checkpoint to what an expert study needs.

    It keeps the last blocks, final norm, heads, experts and router.

    Nothing in a `.pt` file is run: one that holds more than tensors and plain values is refused.
    If its tensors lie under `model_state_dict`, `state_dict` or `model`, whatever lies beside them,
    such as an optimizer's state, is left out.
    """
    from red_lab.shrink import shrink_file

    report = shrink_file(source, last=last, out=out, base=base)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(
        f"{report['in']}: {report['bytes_before']:,} bytes, {report['tensors_before']} tensors, "
        f"{report['blocks']} blocks\n"
        f"{report['out']}: {report['bytes_after']:,} bytes, {report['tensors_after']} tensors, "
        f"the last {report['kept_blocks']} blocks "
        f"({report['bytes_after'] / max(report['bytes_before'], 1):.1%})"
    )


for command in (
    bench,
    matched,
    red,
    robust,
    seeds,
    text,
):
    lab.add_command(command)
