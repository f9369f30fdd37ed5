"""`redhost onnx`: export a generation to a folder that answers without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

__all__ = ["onnx"]

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def onnx() -> None:
    """Answer with a generation on onnxruntime, without torch."""


@onnx.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--home", type=FOLDER, envvar="REDHOST_HOME", help="State folder (default: .redhost here)."
)
@click.option("--question", metavar="NAME", help="The named question that this is about.")
def export(*, folder: Path, home: Path | None, question: str | None) -> None:
    """Write the current generation to FOLDER.

    Nothing is written unless onnxruntime gives the same answers as torch to a hundred texts.
    """
    import redhost
    from redhost_onnx.generation import export_generation

    record = export_generation(redhost.Host.open(home, question=question).composed, folder)
    click.echo(
        f"{folder}: generation {record.generation}, {len(record.labels)} labels; "
        f"{record.texts} texts compared, {record.away:.1g} apart at most"
    )


@onnx.command()
@click.argument("folder", type=FOLDER)
@click.argument("texts", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def predict(*, folder: Path, texts: tuple[str, ...], as_json: bool) -> None:
    """Answer TEXTS (or lines of standard input, with -) with the generation in FOLDER."""
    from redhost_onnx.runtime import ExportedGeneration

    lines = [x for t in texts for x in (sys.stdin.read().splitlines() if t == "-" else [t])]
    answers = ExportedGeneration(folder).answer(x for x in lines if x.strip())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answers), indent=2).decode())
        return
    for a in answers:
        answer = "declined" if a.declined else a.label
        click.echo(f"{a.input} → {answer}  (p = {a.probability:.3f})")
        for column, weight in sorted(a.weights.items(), key=lambda pair: -pair[1]):
            if weight >= 0.005:  # noqa: PLR2004  (the smallest weight that two digits show)
                click.echo(f"  {column:<12} {weight:4.2f}")
