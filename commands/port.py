"""The command port: an expert carried over to another backbone, its bytes unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import bar, device_option, home_option, json_option, print_json

if TYPE_CHECKING:
    from ..core.training.context import AuthoringContext
    from ..core.training.porting import PortedExpert, PortReport
    from ..core.types import Progress
    from ..registry.package.discover import Package
    from ..registry.package.manifest import BackboneRef
    from ..registry.package.readers import ExpertFiles

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("name", metavar="EXPERT|WHEEL|DIR")
@click.option(
    "--to", required=True, metavar="BACKBONE", help="The new backbone: its name, or its folder."
)
@click.option(
    "--from",
    "source",
    metavar="BACKBONE",
    help="The one it was trained on (default: the one installed with its fingerprint).",
)
@click.option(
    "--texts",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Unlabelled texts, one a line (default: both background cards).",
)
@click.option(
    "--rows",
    metavar="FILE",
    help="Labelled rows that it never trained on, where its card holds no texts.",
)
@click.option(
    "--bound",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="The least share of its gain that it has to keep.",
)
@click.option("--out", type=FOLDER, help="The new project (default: red-expert-ID-BACKBONE).")
@home_option
@device_option
@json_option("core.training.porting.PortReport")
def port(
    *,
    name: str,
    to: str,
    source: str | None,
    texts: Path | None,
    rows: str | None,
    bound: float,
    out: Path | None,
    home: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Carry an expert over to another backbone, or say why not.

    No weight is trained. The expert's own bytes stay as they are, behind a map that is fitted on
    unlabelled texts; it has to keep its accuracy on its card's gate rows.
    """
    from ..core.training.porting import port_expert
    from ..core.training.rows import read_rows
    from ..registry.package.forms import DEFAULT_TASK
    from ..registry.package.project import check_free

    files, version = _expert(name, home)
    lines = texts.read_text("utf-8").splitlines() if texts else []
    known = read_rows(rows, task=DEFAULT_TASK) if rows else []
    packages = (_backbone(source, files.manifest.backbone), _backbone(to))
    with bar("port") as progress:
        old, new = (_open(p, home=home, device=device, progress=progress) for p in packages)
        project = out or Path(f"red-expert-{files.manifest.id}-{new.manifest.id}")
        check_free(project)
        ported = port_expert(
            files,
            old=old,
            new=new,
            texts=[x for x in lines if x.strip()],
            rows=known,
            bound=bound,
        )
    _write(project, ported, version=version)
    if as_json:
        print_json(ported.report)
    else:
        _print(ported.report, f"redhost pack {project} --backbone {to}")


def _expert(name: str, home: Path | None) -> tuple[ExpertFiles, str]:
    """Return an expert's checked bytes, and its version where it has one."""
    from ..registry.errors import UsageError
    from ..registry.package.discover import Package
    from ..registry.queries.check import resolve_targets
    from ..registry.queries.settings import resolve_home

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
    from ..core.training.context import open_for_training
    from ..registry.queries.settings import resolve_home

    cache = resolve_home(home) / "cache" / "features"
    return open_for_training(package, cache=cache, device=device or "cpu", progress=progress)


def _write(project: Path, ported: PortedExpert, *, version: str) -> None:
    """Write the project of a port: a build of its own, by the backbone it is for."""
    from ..registry.package.project import write_project

    manifest = ported.manifest
    inner = write_project(
        project,
        kind="expert",
        package_id=manifest.id,
        summary=manifest.domain,
        version=f"{version}+{manifest.backbone.fingerprint[:12]}",
        license=manifest.license,
    )
    ported.save(inner)


def _print(report: PortReport, following: str) -> None:
    click.echo(
        f"expert {report.id!r}: {report.share:.1%} of its gain stays "
        f"({report.interval[0]:.1%} … {report.interval[1]:.1%})\n"
        f"accuracy on {report.rows} gate rows: {report.own:.3f} on {report.old!r}, "
        f"{report.ported:.3f} on {report.new!r}, {report.nothing:.3f} for one answer to all\n"
        f"map fitted on {report.texts} texts ({report.map[:12]})\n"
        f"next: {following}"
    )


def _backbone(name: str | None, named: BackboneRef | None = None) -> Path | Package:
    """Return a backbone's folder, or the installed one of a name or a fingerprint."""
    from ..registry.package.discover import discover
    from ..registry.queries.settings import choose_backbone

    if name is not None and Path(name).is_dir():
        return Path(name)
    return choose_backbone(discover("backbone"), name, named=named)


COMMANDS = (port,)
