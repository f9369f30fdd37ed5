"""The command evaluate: what is composed beside everything simpler, and how routes spread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import (
    bar,
    device_option,
    engine_options,
    field_options,
    home_option,
    json_option,
    open_host,
    print_json,
    table,
)
from .receipts import points

if TYPE_CHECKING:
    from ..core.host import Host
    from ..core.measuring.evaluate import Evaluation
    from ..core.measuring.mixtures import Mixtures
    from ..core.measuring.outside import Outside
    from ..core.receipt import Health
    from ..core.rows import Row

__all__ = ["COMMANDS", "evaluate"]


@click.command()
@home_option
@click.option(
    "--data",
    metavar="FILE",
    help="JSON lines, CSV, Parquet, or -; by default the backbone's own held-out rows.",
)
@field_options
@click.option(
    "--outside",
    metavar="FILE",
    help="A text a line, from elsewhere: report how often they are declined, with the AUROC.",
)
@click.option("--leave-one-out", is_flag=True, help="What each domain loses without each expert.")
@click.option("--mixtures", is_flag=True, help="Every router kind under every mixture of traffic.")
@click.option("--plot", metavar="FILE", help="Draw the mixtures: FILE.svg, .png, .pdf.")
@click.option("--routing", is_flag=True, help="How the weight is spread: collapse, dead experts.")
@engine_options
@device_option
@json_option(
    "core.measuring.evaluate.Evaluation",
    outside="core.measuring.outside.Outside",
    mixtures="core.measuring.mixtures.Mixtures",
)
def evaluate(
    *,
    home: Path | None,
    data: str | None,
    text_field: str,
    label_field: str,
    outside: str | None,
    leave_one_out: bool,
    mixtures: bool,
    plot: str | None,
    routing: bool,
    engine: str,
    workers: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Evaluate the current generation beside everything simpler.

    Each line of the table is a way to answer: 'routed' is the generation itself, 'oracle' is told
    whose input it is, and every other line is something simpler to compare with.
    """
    host = open_host(home, device=device, engine=engine, workers=workers)
    rows = None
    if data is not None:
        rows = _read(data, host, text_field=text_field, label_field=label_field)
    strangers = traffic = None
    with bar("evaluate") as progress:
        result = host.evaluate(rows, leave_out=leave_one_out, progress=progress)
        if mixtures or plot is not None:
            traffic = host.mixtures(rows, progress=progress)
        if outside is not None:
            strangers = host.outside(_texts(outside), rows, progress=progress)
    if traffic is not None and plot is not None:
        _draw(traffic, Path(plot))
    if as_json:
        _print_as_json(result, outside=strangers, mixtures=traffic)
        return
    _print_evaluation(result)
    if traffic is not None:
        _print_mixtures(traffic)
    if routing and result.routing is not None:
        _print_health(result.routing)
    if strangers is not None:
        _print_outside(strangers)


def _read(data: str, host: Host, *, text_field: str, label_field: str) -> list[Row]:
    """Read rows of the kind that what is composed answers."""
    from ..core.authoring.tables import read_documents, read_table

    task = host.composed.bus.task.name
    if task == "generation":
        return read_documents(data, text_field=text_field, document_field="domain")
    numbers = task == "regression"
    return read_table(data, text_field=text_field, label_field=label_field, numbers=numbers)


def _texts(file: str) -> list[str]:
    from ..core.authoring.tables import read_texts

    return [r.text for r in read_texts(file)]


def _draw(traffic: Mixtures, file: Path) -> None:
    from ..core.measuring.mixtures_figure import draw_mixtures

    draw_mixtures(traffic, file)


def _print_as_json(result: Evaluation, **more: Outside | Mixtures | None) -> None:
    import msgspec

    told = {k: v for k, v in more.items() if v is not None}
    print_json({**msgspec.to_builtins(result), **told})


def _print_evaluation(result: Evaluation) -> None:
    overall = {**result.baselines, "routed": result.overall, "oracle": result.oracle}
    domains = list(result.counts)
    rows: list[list[object]] = [
        [name, *(points(row[d]) for d in domains), points(overall[name])]
        for name, row in result.table.items()
    ]
    rows.append(["rows", *(result.counts[d] for d in domains), result.rows])
    if result.mae is not None:
        errors = [f"{result.mae[d]:.3g}" for d in (*domains, "overall")]
        rows.append(["mean absolute error", *errors])
    table(f"generation {result.generation}, accuracy", ("system", *domains, "overall"), rows)
    if result.bits is not None:
        told = [
            [n, *(points(row[d]) for d in (*domains, "overall"))] for n, row in result.bits.items()
        ]
        table("bits per byte", ("system", *domains, "overall"), told)
    if result.leave_one_out is None:
        return
    losses: list[list[object]] = [
        [f"without {i}", *(f"{100 * (row[d] - result.domains[d]):+.1f}" for d in domains)]
        for i, row in result.leave_one_out.items()
    ]
    table("leave one out, points gained or lost", ("", *domains), losses)


def _print_mixtures(told: Mixtures) -> None:
    rows = [
        (
            kind,
            f"{r.worst.regret:.4f}",
            r.worst_domain,
            f"{r.regrets[2]:.4f}",
            f"{r.uniform.regret:.4f}",
            points(r.worst.accuracy),
            points(r.uniform.accuracy),
        )
        for kind, r in sorted(told.routers.items(), key=lambda pair: pair[1].worst.regret)
    ]
    head = ("router", "worst regret", "at", "95 % of mixtures", "uniform")
    title = "every mixture of traffic: nats above the domains' own experts, and accuracy"
    table(title, (*head, "worst accuracy", "uniform"), rows)


def _print_health(health: Health) -> None:
    rows = [
        (c, f"{used:.3f}", f"{health.loudness[c]:.2f}" if c in health.loudness else "")
        for c, used in health.usage.items()
    ]
    table(f"routes of {health.rows} rows", ("column", "mean weight", "loudness at home"), rows)
    apart = "" if health.distance is None else f", answers {health.distance:.2f} apart"
    click.echo(
        f"usage entropy {health.entropy:.3f} (rows' own {health.expected_entropy:.3f}){apart}"
    )
    for warning in health.warnings:
        click.echo(f"warning    {warning}")


def _print_outside(strangers: Outside) -> None:
    click.echo(
        f"outside: {strangers.declined:.1%} of {strangers.rows} texts declined, "
        f"{strangers.declined_inside:.1%} of the experts' own; AUROC {strangers.auroc:.3f}"
    )


COMMANDS = (evaluate,)
