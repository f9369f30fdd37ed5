"""The command evaluate: the composition compared with simpler baselines, and routing health."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .common import (
    bar,
    composition_options,
    cut_texts,
    device_option,
    domain_option,
    engine_options,
    field_options,
    json_option,
    open_host,
    print_json,
    read_data,
)
from .receipts import points
from .tables import table

if TYPE_CHECKING:
    from ..core.evaluation.evaluate import Evaluation
    from ..core.model.composed import ComposedModel
    from ..core.types import Row


@click.command()
@composition_options
@click.option(
    "--data",
    metavar="FILE",
    help="JSON lines, CSV, TSV, Parquet, or -; by default the backbone's own held-out rows.",
)
@field_options
@domain_option
@click.option(
    "--outside",
    metavar="FILE",
    help="Texts outside every domain, one a line: report how often they are declined, and AUROC.",
)
@click.option("--leave-one-out", is_flag=True, help="Loss of each domain without each expert.")
@click.option("--mixtures", is_flag=True, help="Every router kind under every mixture of domains.")
@click.option("--labels", is_flag=True, help="Precision, recall and F1 of every label.")
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw the confusion of labels, or with --mixtures the mixtures: FILE.svg, .png, .pdf.",
)
@click.option(
    "--curves",
    metavar="FILE",
    help="Draw accuracy over confidence, and over the share answered: FILE.svg, .png, .pdf.",
)
@click.option("--routing", is_flag=True, help="How weights are spread: collapse, dead experts.")
@engine_options
@device_option
@json_option(
    "core.evaluation.evaluate.Evaluation",
    outside="redhost_report.ood.OODReport",
    mixtures="redhost_report.mixtures.MixtureSweep",
)
def evaluate(
    *,
    home: Path | None,
    data: str | None,
    text_field: str,
    label_field: str,
    domain_field: str | None,
    outside: str | None,
    leave_one_out: bool,
    mixtures: bool,
    labels: bool,
    plot: str | None,
    curves: str | None,
    routing: bool,
    engine: str,
    workers: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Compare the current generation with simpler baselines.

    Each line of the table is a way to answer: 'routed' is the generation itself, 'oracle' is given
    each row's own expert, and every other line is a simpler baseline.
    """
    import msgspec

    from ..core.training.rows import read_texts

    fields = {"text_field": text_field, "label_field": label_field}
    rows = read_data(home, data, domain_field=domain_field, **fields)
    elsewhere = None if outside is None else [r.text for r in read_texts(outside)]
    host = open_host(home, device=device, engine=engine, workers=workers)
    extras = _extras(
        outside=elsewhere,
        mixtures=mixtures,
        plot=plot,
        curves=curves,
        labels=labels,
        routing=routing,
    )
    with bar("evaluate") as progress:
        result = host.evaluate(rows, leave_out=leave_one_out, progress=progress)
        more = extras.measure(host, rows, progress=progress) if extras else {}
    if extras:
        extras.draw(result, more)
    _print_cut(rows or (), host.composed)
    if as_json:
        print_json({**msgspec.to_builtins(result), **more})
    else:
        _print_evaluation(result)
        if extras:
            extras.show(result, more)
        _print_unanswered(rows or (), host.composed)


def _extras(
    *,
    outside: Sequence[str] | None,
    mixtures: bool,
    plot: str | None,
    curves: str | None,
    labels: bool,
    routing: bool,
) -> Any:
    """Return what measures, draws and prints more, if asked for: redhost-report has it."""
    from .lazy import import_beside

    given = (outside, plot, curves)
    if not (mixtures or labels or routing) and all(option is None for option in given):
        return None
    needed_for = "evaluate with --outside, --mixtures, --plot, --curves, --labels or --routing"
    make = import_beside("report", "redhost_report.evaluation:Extras", needed_for=needed_for)
    return make(
        outside=outside,
        mixtures=mixtures,
        plot=plot,
        curves=curves,
        labels=labels,
        routing=routing,
    )


def _print_cut(rows: Sequence[Row], model: ComposedModel) -> None:
    """Report on stderr how many texts were truncated; passages of documents are made to fit."""
    generates = model.backbone.task.unit.generates
    cuts = [] if generates else model.backbone.cuts([r.text for r in rows])
    if cut := cut_texts(cuts):
        click.echo(cut, err=True)


def _print_unanswered(rows: Sequence[Row], model: ComposedModel) -> None:
    """Report rows that cannot be right because their label is unknown, perhaps mistyped."""
    from ..registry.errors import suggest
    from ..registry.package.forms import DEFAULT_TASK

    if model.backbone.task.name != DEFAULT_TASK:
        return
    labels = {*filter(None, model.bus.labels), "none"}
    if unknown := [(n, r.label) for n, r in enumerate(rows, start=1) if r.label not in labels]:
        n, label = unknown[0]
        click.echo(
            f"{len(unknown)} of {len(rows)} rows have a label that no expert has, first row {n}: "
            f"{label!r}. {suggest(label, labels)}".rstrip()
        )


def _print_evaluation(result: Evaluation) -> None:
    overall = {**result.baselines, "routed": result.overall, "oracle": result.oracle}
    domains = list(result.counts)
    rows: list[list[object]] = [
        [name, *(points(row.get(d)) or "n/a" for d in domains), points(overall[name]) or "n/a"]
        for name, row in result.table.items()
    ]
    rows.append(["rows", *(result.counts[d] for d in domains), result.rows])
    if result.mae is not None:
        errors = [f"{result.mae[d]:.3g}" for d in (*domains, "overall")]
        rows.append(["mean absolute error", *errors])
    if result.declined is not None:
        rows.append(["declined", *(points(result.declined[d]) for d in (*domains, "overall"))])
    of = "accuracy" if result.micro_f1 is None else "accuracy of whole sets"
    of = "accuracy by word" if result.spans else of
    table(f"generation {result.generation}, {of}", ("system", *domains, "overall"), rows)
    if result.oracle is None:
        click.echo(
            "oracle     n/a: no row names the expert it is for; --domain-field says where the id "
            "of one stands"
        )
    if result.micro_f1 is not None:
        micro, macro = points(result.micro_f1), points(result.macro_f1)
        what = "exact spans" if result.spans else "single labels"
        click.echo(f"micro F1 {micro}, macro F1 {macro} of {what}")
    if result.reliability is not None:
        click.echo(f"calibration error (ECE) {result.reliability.ece:.3f}")
    if result.bits is not None:
        bits = [
            [n, *(points(row[d]) for d in (*domains, "overall"))] for n, row in result.bits.items()
        ]
        table("bits per byte", ("system", *domains, "overall"), bits)
    if result.leave_one_out is not None:
        losses: list[list[object]] = [
            [f"without {i}", *(f"{100 * (row[d] - result.domains[d]):+.1f}" for d in domains)]
            for i, row in result.leave_one_out.items()
        ]
        table("leave one out, points gained or lost", ("", *domains), losses)
