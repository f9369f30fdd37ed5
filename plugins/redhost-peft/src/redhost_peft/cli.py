"""What adapters add to the command line: `redhost export`, and ``new-expert --from peft:DIR``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from redhost_author.expert_cli import rows_for
from redhost_author.trained import print_trained

from redhost.commands.common import backbone_option, bar, home_option

from .package import FORM, read_packaged
from .peft_adapter import CONFIG, WEIGHTS, read_adapter

if TYPE_CHECKING:
    from redhost_author.project import ExpertPlan

    from redhost.registry.package.readers import BackboneFiles, ExpertFiles

    from .peft_adapter import Adapter


@click.command()
@click.argument("name", metavar="EXPERT|WHEEL|DIR")
@click.option(
    "--to",
    "form",
    type=click.Choice(["peft", "gguf"]),
    required=True,
    help="PEFT's two files, or the one that llama.cpp reads.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Default: EXPERT-FORMAT."
)
@backbone_option
@home_option
def export(
    *, name: str, form: str, out: Path | None, backbone: str | None, home: Path | None
) -> None:
    """Export an expert's adapter as PEFT's files, or for llama.cpp."""
    from redhost_author.new_folder import making
    from redhost_author.project import check_free
    from redhost_author.targets import resolve_targets

    from redhost.registry.errors import UsageError
    from redhost.registry.queries.settings import resolve_home

    target = resolve_targets([name], home=resolve_home(home), backbone=backbone)[0]
    for wrong in target.violations:
        raise wrong.error(f"expert {name!r}")
    files = target.files
    if files is None or files.manifest.form != FORM:
        raise UsageError(
            f"expert {name!r} cannot be written for {form}",
            expected=f"an expert of the form {FORM!r}",
            found=f"the form {files.manifest.form!r}" if files else "none",
        )
    adapter = read_packaged(files.manifest, files.files).unwrap(f"expert {name!r}")
    folder = out or Path(f"{files.manifest.id}-{form}")
    check_free(folder)
    with making(folder):
        folder.mkdir(parents=True)
        if form == "gguf":
            _write_gguf(folder, adapter, files, target.backbone)
        else:
            (folder / CONFIG).write_bytes(files.files[CONFIG])
            (folder / WEIGHTS).write_bytes(files.weights)
    click.echo(f"{folder}")


def _write_gguf(
    folder: Path, adapter: Adapter, files: ExpertFiles, installed: BackboneFiles | None
) -> None:
    """Write ``EXPERT.gguf``; the model's configuration is the backbone's.

    How llama.cpp starts a text is the base's: what it needs beside the file is printed.
    """
    import safetensors.torch

    from redhost.core.model.build import make_backbone
    from redhost.core.plugins.manager import Plugins
    from redhost.registry.errors import MissingError

    from .gguf_adapter import task_name, write_gguf
    from .lora import linears_of

    who = files.manifest.id
    if installed is None:
        raise MissingError(
            f"expert {who!r} cannot be written for gguf", expected="its backbone, installed"
        )
    backbone = make_backbone(installed, plugins=Plugins(), providers={}, device="cpu")
    model = backbone.trunk.model
    write_gguf(
        folder / f"{who}.gguf",
        adapter,
        safetensors.torch.load(files.weights),
        name=task_name(who, files.digest),
        config=model.config,
        prefix=adapter.prefix(linears_of(model)) or "",
    )
    if backbone.task.unit.generates:
        from redhost_generate.tokens import llama_cpp_start

        if more := llama_cpp_start(backbone.trunk):
            click.echo(f"to start texts as redhost does: llama-server {more}", err=True)


def import_project(
    project: Path,
    plan: ExpertPlan,
    source: str | None,
    data: str | None,
    *,
    fields: tuple[str, str],
    home: Path | None,
    device: str | None,
) -> None:
    """Write the project of an adapter; `fields` are the names of the text and label fields."""
    from redhost.registry.package.discover import discover
    from redhost.registry.queries.settings import choose_backbone, resolve_home, wanted_backbone

    files = _adapter_files(source, data, plan)
    plan = msgspec.structs.replace(plan, form=FORM)
    wanted = wanted_backbone(resolve_home(home), plan.backbone)
    package = choose_backbone(discover("backbone"), wanted)
    rows = rows_for(package, text_field=fields[0], label_field=fields[1])(str(data))
    from .adapter import import_adapter  # loads torch: after the files are read

    with bar("new-expert") as progress:
        made = import_adapter(
            project, plan, files, rows, package=package, home=home, device=device, progress=progress
        )
    print_trained(made)
    click.echo(f"next: redhost pack {project}")


def _adapter_files(source: str | None, data: str | None, plan: ExpertPlan) -> Mapping[str, bytes]:
    """Read an adapter's files before anything is written.

    Raises:
        UsageError: If the options are incompatible.
        RedhostError: If the files are not an adapter.
    """
    from redhost.registry.errors import UsageError

    from .folder import read_folder

    kind, _, folder = (source or "").partition(":")
    given = plan.rank, plan.blocks, plan.targets
    own = plan.form in {None, FORM} and not any(given) and plan.writes != "logits"
    if kind != "peft" or not folder or data is None or not own or plan.acts_inside:
        raise UsageError(
            "an adapter comes with its form and rank",
            expected="--from peft:DIR and --data FILE, and neither --form, --rank nor a tap",
            found=f"--from {source}, --data {data}",
        )
    files = read_folder(Path(folder).expanduser()).unwrap(f"adapter {folder}")
    read_adapter(files[CONFIG], files[WEIGHTS]).unwrap(f"adapter {folder}")
    return files
