"""The command port: an expert carried over to another backbone, its bytes unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import bar, device_option, home_option, json_option, print_json

if TYPE_CHECKING:
    from ..registry.package.discover import Package
    from ..registry.package.manifest import BackboneRef

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
    """Carry an expert over to another backbone, or refuse with the figures.

    No weight is trained. The expert's own bytes stay as they are, behind a map that is fitted on
    unlabelled texts; it has to keep its accuracy on its card's gate rows.
    """
    from ..core.training.context import open_for_training
    from ..core.training.porting import port_expert
    from ..core.training.rows import read_rows
    from ..registry.errors import UsageError
    from ..registry.package.discover import Package
    from ..registry.package.forms import DEFAULT_TASK
    from ..registry.package.project import check_free, write_project
    from ..registry.queries.check import resolve_targets
    from ..registry.queries.settings import resolve_home

    [target, *_] = resolve_targets([name], home=resolve_home(home), backbone=None)
    for wrong in target.violations:
        raise wrong.error(f"expert {name!r}")
    files = target.files
    if files is None:
        raise UsageError(f"{name} is no expert")
    lines = texts.read_text("utf-8").splitlines() if texts else []
    known = read_rows(rows, task=DEFAULT_TASK) if rows else []
    cache = resolve_home(home) / "cache" / "features"
    with bar("port") as progress:
        old, new = (
            open_for_training(package, cache=cache, device=device or "cpu", progress=progress)
            for package in (_backbone(source, files.manifest.backbone), _backbone(to))
        )
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
    version = target.source.version if isinstance(target.source, Package) else ""
    inner = write_project(
        project,
        kind="expert",
        package_id=files.manifest.id,
        summary=files.manifest.domain,
        version=f"{version or '0.1.0'}+{new.manifest.fingerprint[:12]}",
        license=files.manifest.license,
    )
    ported.save(inner)
    report = ported.report
    if as_json:
        print_json(report)
        return
    click.echo(
        f"expert {report.id!r}: {report.share:.1%} of its gain stays "
        f"({report.interval[0]:.1%} … {report.interval[1]:.1%})\n"
        f"accuracy on {report.rows} gate rows: {report.own:.3f} on {report.old!r}, "
        f"{report.ported:.3f} on {report.new!r}, {report.nothing:.3f} for one answer to all\n"
        f"map fitted on {report.texts} texts ({report.map[:12]})\n"
        f"next: redhost pack {project} --backbone {to}"
    )


def _backbone(name: str | None, named: BackboneRef | None = None) -> Path | Package:
    """Return a backbone's folder, or the installed one of a name or a fingerprint."""
    from ..registry.package.discover import discover
    from ..registry.queries.settings import choose_backbone

    if name is not None and Path(name).is_dir():
        return Path(name)
    return choose_backbone(discover("backbone"), name, named=named)


COMMANDS = (port,)
