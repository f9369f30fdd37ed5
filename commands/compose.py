"""Commands that compute: recompose, predict, evaluate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .common import (
    backbone_option,
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
from .receipts import points, print_receipt

if TYPE_CHECKING:
    from ..core.evaluate import Evaluation
    from ..core.mixtures import Mixtures
    from ..core.receipt import Health

__all__ = ["COMMANDS"]


@click.command()
@home_option
@backbone_option
@click.option(
    "--router",
    metavar="KIND[:OPTIONS]",
    help="evidence, quadratic, statistics, centroid, linear, mlp, topk:k=2, shortlist, hard, "
    "attention, blend, robust, causal, causal-mixture, or a plugin's.",
)
@click.option(
    "--level",
    type=click.Choice(["zero", "row", "full"]),
    help="How much of the router to retrain (default: full).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Where randomness comes from.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="POINTS",
    help="What a domain may lose before it is refused (default: 1, or 2 gate rows if more).",
)
@click.option("--accept", is_flag=True, help="Publish even if a domain loses more than that.")
@click.option("--locked", is_flag=True, help="Refuse unless what is installed is what is locked.")
@click.option("--dry-run", is_flag=True, help="Do everything but publish.")
@engine_options
@device_option
@json_option("core.receipt.Receipt")
def recompose(
    *,
    home: Path | None,
    backbone: str | None,
    router: str | None,
    level: Literal["zero", "row", "full"] | None,
    seed: int | None,
    tolerance: float | None,
    accept: bool,
    locked: bool,
    dry_run: bool,
    engine: str,
    workers: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Check installed experts, retrain only the router, publish a generation."""
    host = open_host(home, backbone=backbone, device=device, engine=engine, workers=workers)
    with bar("recompose") as progress:
        receipt = host.recompose(
            router=router,
            level=level,
            seed=seed,
            tolerance=tolerance,
            accept=accept,
            locked=locked,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        print_json(receipt)
    else:
        print_receipt(receipt)


@click.command()
@click.argument("texts", nargs=-1, required=True)
@home_option
@device_option
@json_option("list[core.composed.Answer]")
def predict(
    *, texts: tuple[str, ...], home: Path | None, device: str | None, as_json: bool
) -> None:
    """Answer TEXTS (or lines of standard input, with -)."""
    lines = [x for t in texts for x in (sys.stdin.read().splitlines() if t == "-" else [t])]
    answers = open_host(home, device=device).predict([x for x in lines if x.strip()])
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        sure = "" if answer.probability is None else f"  (p = {answer.probability:.3f})"
        click.echo(f"{answer.input} → {answer.label}{sure}")
        for column, weight in sorted(answer.weights.items(), key=lambda pair: -pair[1]):
            if weight >= 0.005:  # noqa: PLR2004  (what two digits can show)
                click.echo(f"  {column:<12} {weight:4.2f} {'█' * round(30 * weight)}")


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
    "core.evaluate.Evaluation", outside="core.outside.Outside", mixtures="core.mixtures.Mixtures"
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
    """Evaluate the current generation beside everything simpler."""
    import msgspec

    from ..core.tables import read_documents, read_table, read_texts

    host = open_host(home, device=device, engine=engine, workers=workers)
    rows = None
    if data is not None:
        task = host.composed.bus.task.name
        if task == "generation":
            rows = read_documents(data, text_field=text_field, document_field="domain")
        else:
            rows = read_table(
                data,
                text_field=text_field,
                label_field=label_field,
                numbers=task == "regression",
            )
    strangers = traffic = None
    with bar("evaluate") as progress:
        result = host.evaluate(rows, leave_out=leave_one_out, progress=progress)
        if mixtures or plot is not None:
            traffic = host.mixtures(rows, progress=progress)
        if outside is not None:
            texts = [r.text for r in read_texts(outside)]
            strangers = host.outside(texts, rows, progress=progress)
    if traffic is not None and plot is not None:
        from ..core.mixtures_figure import draw_mixtures

        draw_mixtures(traffic, Path(plot))
    if as_json:
        more = {"outside": strangers, "mixtures": traffic}
        told = {k: v for k, v in more.items() if v is not None}
        print_json({**msgspec.to_builtins(result), **told})
        return
    _print_evaluation(result)
    if traffic is not None:
        _print_mixtures(traffic)
    if routing and result.routing is not None:
        _print_health(result.routing)
    if strangers is not None:
        click.echo(
            f"outside: {strangers.declined:.1%} of {strangers.rows} texts declined, "
            f"{strangers.declined_inside:.1%} of the experts' own; AUROC {strangers.auroc:.3f}"
        )


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


COMMANDS = (recompose, predict, evaluate)
