"""Commands that write files for authors: new-key, new-plugin, new-workflow, schema."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from redhost.commands.common import json_option, print_json

if TYPE_CHECKING:
    from redhost_author.plugin_project import Kind


@click.command("new-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option("redhost_author.signing.KeyPair")
def new_key(*, file: Path, as_json: bool) -> None:
    """Make a key pair to sign wheels with.

    FILE is private; its .pub.pem can be published.
    """
    from redhost.registry.wheel.signing import read_keys
    from redhost_author.signing import KeyPair
    from redhost_author.signing import new_key as make

    public = make(file)
    [key] = read_keys([public])
    if as_json:
        pair = KeyPair(private=str(file), public=str(public), fingerprint=key.fingerprint)
        print_json(pair)
        return
    click.echo(f"private    {file} (keep it to yourself; it has no password)")
    click.echo(f"public     {public} sha256:{key.fingerprint}")
    click.echo(f"next: redhost pack DIR --sign {shlex.quote(str(file))}")


@click.command("new-plugin")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["form", "router", "task"]),
    required=True,
    help="form: of experts, with how 'train-expert' makes one; router: a kind for '--router'; "
    "task: a kind of answer for 'new-backbone --task'.",
)
def new_plugin(*, name: str, kind: Kind) -> None:
    """Make a plugin's project, which works as it is.

    It is written to ./redhost-NAME: one module that adds the part NAME, and its test.
    """
    from redhost_author.plugin_project import write_plugin

    project = write_plugin(name, kind)
    click.echo(f"{project}\nnext: pip install -e ./{project}, then redhost trust {project}")


@click.command("new-workflow")
@click.argument("project", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--for",
    "service",
    type=click.Choice(["github"]),
    default="github",
    show_default=True,
    help="Whose workflow it is.",
)
@click.option("--force", is_flag=True, help="Replace a workflow that is there.")
def new_workflow(*, project: Path, service: str, force: bool) -> None:
    """Write a workflow that checks and publishes the expert of PROJECT.

    A pull request is checked as by 'redhost check --strict'. A tag that is the version, such as
    v0.1.0, publishes the wheel on PyPI, without a token, and signs it where the repository has a
    secret SIGNING_KEY. Nothing is trained.
    """
    from redhost_author.workflow import write_workflow

    path, notes = write_workflow(project, service, force=force)
    click.echo(path)
    for note in notes:
        click.echo(f"warning    {note}")
    click.echo("next: commit the project with its weights; its first lines say what PyPI needs")


@click.command()
@click.argument("kind", type=click.Choice(["expert", "backbone"]), default="expert")
def schema(*, kind: Literal["expert", "backbone"]) -> None:
    """Print the JSON Schema of expert.json or backbone.json."""
    from redhost.registry.package.manifest import BackboneManifest, ExpertManifest

    print_json(msgspec.json.schema(ExpertManifest if kind == "expert" else BackboneManifest))
