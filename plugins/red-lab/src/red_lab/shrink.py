"""`redhost lab shrink`: keep only the part of a checkpoint that its base model does not have.

A legacy checkpoint contains a whole model although only its top blocks and its heads were trained.
Names decide what is kept, what the base contains and what is tied; see `shrink_files`.
"""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["shrink"]

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
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
    import json

    from red_lab.shrink_files import shrink_file

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
