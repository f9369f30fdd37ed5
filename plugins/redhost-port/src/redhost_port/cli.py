"""Commands for a new backbone: port, for one expert; migrate, for a whole composition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from redhost.commands.common import (
    F,
    bar,
    chosen_keys,
    composition_options,
    device_option,
    field_options,
    home_option,
    json_option,
    key_option,
    open_host,
    print_json,
    tolerance_option,
)
from redhost.commands.receipts import print_receipt

if TYPE_CHECKING:
    from redhost_author.training.context import AuthoringContext

    from redhost.core.composition.options import RecomposeKeywords
    from redhost.core.types import Progress, Row
    from redhost.registry.package.discover import Package
    from redhost.registry.package.manifest import BackboneRef
    from redhost.registry.package.readers import ExpertFiles
    from redhost_port.porting import PortReport

FOLDER = click.Path(path_type=Path, file_okay=False)


def _material_options(command: F) -> F:
    """Add the options for data that experts are ported with."""
    texts = click.option(
        "--texts",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Unlabelled texts, one a line (default: both background cards).",
    )
    rows = click.option(
        "--rows",
        metavar="FILE",
        help="Held-out labelled rows, for an expert whose card holds no texts.",
    )
    bound = click.option(
        "--bound",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.95,
        show_default=True,
        help="The least share of its gain that an expert has to keep.",
    )
    return texts(rows(field_options(bound(command))))


@click.command()
@click.argument("name", metavar="EXPERT|WHEEL|DIR")
@click.option(
    "--to", required=True, metavar="BACKBONE", help="The new backbone: its name, or its folder."
)
@click.option(
    "--from",
    "source",
    metavar="BACKBONE",
    help="Its current backbone (default: the one installed with its fingerprint).",
)
@_material_options
@click.option("--out", type=FOLDER, help="The new project (default: red-expert-ID-BACKBONE).")
@home_option
@device_option
@json_option("redhost_port.porting.PortReport")
def port(
    *,
    name: str,
    to: str,
    source: str | None,
    texts: Path | None,
    rows: str | None,
    text_field: str,
    label_field: str,
    bound: float,
    out: Path | None,
    home: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Port an expert to another backbone.

    If this is not possible, the reason is reported. No weight is trained. The expert's own bytes
    stay unchanged, behind a map that is fitted on unlabelled texts; it has to keep its accuracy on
    its card's gate rows.
    """
    from redhost_author.project import check_free

    from redhost_port.porting import port_expert, write_port

    files, version = _expert(name, home)
    lines, known = _material(texts, rows, text_field=text_field, label_field=label_field)
    packages = (_backbone(source, files.manifest.backbone), _backbone(to))
    with bar("port") as progress:
        old, new = (_open(p, home=home, device=device, progress=progress) for p in packages)
        project = out or Path(f"red-expert-{files.manifest.id}-{new.manifest.id}")
        check_free(project)
        ported = port_expert(
            files,
            old=old,
            new=new,
            texts=lines,
            rows=known,
            bound=bound,
        )
    write_port(project, ported, version=version)
    if as_json:
        print_json(ported.report)
    else:
        _print_report(ported.report)
        installed = "" if Path(to).is_dir() else f" --backbone {to}"
        click.echo(f"next: redhost pack {project}{installed}")


@click.command()
@click.option("--to", required=True, metavar="BACKBONE", help="The new backbone, installed.")
@_material_options
@click.option(
    "--with",
    "native",
    metavar="WHEEL",
    multiple=True,
    help="An expert's build for the new backbone, instead of a port; repeatable. Installed builds "
    "that fit are used without this option.",
)
@click.option("--without", metavar="ID", multiple=True, help="Leave out an expert; repeatable.")
@key_option
@click.option("--router", metavar="KIND[:OPTIONS]", help="Use another router.")
@tolerance_option
@click.option("--accept", is_flag=True, help="Proceed if a domain loses more.")
@click.option("--out", type=FOLDER, help="Folder for the ports' wheels (default: ports-BACKBONE).")
@composition_options
@device_option
@json_option("redhost_port.migrate.Migrated")
def migrate(
    *,
    to: str,
    texts: Path | None,
    rows: str | None,
    text_field: str,
    label_field: str,
    bound: float,
    native: tuple[str, ...],
    without: tuple[str, ...],
    keys: tuple[str, ...],
    out: Path | None,
    home: Path | None,
    device: str | None,
    as_json: bool,
    **keywords: Unpack[RecomposeKeywords],
) -> None:
    """Move the whole composition to another backbone.

    Either every expert is ported, judged and composed there, or nothing changes. Until then the
    current generation answers; 'redhost rollback' goes back to it.
    """
    from redhost.registry.environment.installer import fetch
    from redhost.registry.home.questions import option

    package, trusted = _installed(to), chosen_keys(keys)
    wheels = tuple(fetch(wheel, keys=trusted) for wheel in native)
    from redhost_port.migrate import PortingMaterial
    from redhost_port.migrate import migrate as move

    lines, known = _material(texts, rows, text_field=text_field, label_field=label_field)
    material = PortingMaterial(texts=lines, rows=known, bound=bound, native=wheels, without=without)
    with bar("migrate") as keywords["progress"]:
        session = open_host(home, device=device).session
        done = move(session, package, material=material, out=out or Path(f"ports-{to}"), **keywords)
    if as_json:
        print_json(done)
        return
    for report in done.ported:
        _print_report(report)
    print_receipt(done.receipt)
    for wheel in done.wheels:
        click.echo(f"installed  {wheel}")
    back = f"redhost rollback{option(session.home)}"
    click.echo(f"moved from {done.old!r} to {done.new!r}; back again: {back}")


def _material(
    texts: Path | None, rows: str | None, *, text_field: str, label_field: str
) -> tuple[list[str], list[Row]]:
    """Read the data that experts are ported with."""
    from redhost.core.training.rows import read_rows, read_texts
    from redhost.registry.package.forms import DEFAULT_TASK

    lines = [row.text for row in read_texts(texts)] if texts else []
    if rows is None:
        return lines, []
    return lines, read_rows(rows, task=DEFAULT_TASK, text_field=text_field, label_field=label_field)


def _expert(name: str, home: Path | None) -> tuple[ExpertFiles, str]:
    """Return an expert's checked bytes, and its version if it has one."""
    from redhost_author.targets import resolve_targets

    from redhost.registry.errors import UsageError
    from redhost.registry.package.discover import Package
    from redhost.registry.queries.settings import resolve_home

    [target, *_] = resolve_targets([name], home=resolve_home(home), backbone=None)
    for wrong in target.violations:
        raise wrong.error(f"expert {name!r}")
    if target.files is None:
        raise UsageError(f"{name} is no expert")
    source = target.source
    return target.files, (source.version if isinstance(source, Package) else "") or "0.1.0"


def _open(
    package: Path | Package, *, home: Path | None, device: str | None, progress: Progress
) -> AuthoringContext:
    from redhost_author.training.context import open_for_training

    from redhost.registry.home.questions import cache_of
    from redhost.registry.queries.settings import resolve_home

    cache = cache_of(resolve_home(home)) / "features"
    return open_for_training(package, cache=cache, device=device or "cpu", progress=progress)


def _print_report(report: PortReport) -> None:
    click.echo(
        f"expert {report.id!r}: {report.share:.1%} of its gain stays "
        f"({report.interval[0]:.1%} … {report.interval[1]:.1%})\n"
        f"accuracy on {report.rows} gate rows: {report.own:.3f} on {report.old!r}, "
        f"{report.ported:.3f} on {report.new!r}, {report.nothing:.3f} for one answer to all, "
        f"{report.retrained:.3f} for a head of the card's rows on {report.new!r}\n"
        f"map fitted on {report.texts} texts ({report.map[:12]})"
        + ("; the sums of its card came along" if report.sums else "")
    )


def _backbone(name: str | None, named: BackboneRef | None = None) -> Path | Package:
    """Return a backbone's folder, or the installed one with a name or a fingerprint."""
    return Path(name) if name is not None and Path(name).is_dir() else _installed(name, named)


def _installed(name: str | None, named: BackboneRef | None = None) -> Package:
    from redhost.registry.package.discover import discover
    from redhost.registry.queries.settings import choose_backbone

    return choose_backbone(discover("backbone"), name, named=named)
