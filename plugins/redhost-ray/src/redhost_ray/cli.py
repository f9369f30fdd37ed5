"""`redhost deploy`. Ray is imported inside the command."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["deploy"]


@click.command()
@click.argument("url", envvar="REDHOST_FLEET")
@click.option(
    "--replicas",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many.",
)
@click.option(
    "--autoscaling",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSON file with Ray Serve's own autoscaling settings, in place of --replicas.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".redhost/replicas"),
    show_default=True,
    help="Folder for the replicas' homes, on each machine.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(1, 65535), help="Port."
)
@click.option(
    "--allowed-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name that clients may ask for, beside localhost and the address.",
)
@click.option("--cpus", default=1.0, show_default=True, help="CPUs that Ray gives each replica.")
def deploy(
    *,
    url: str,
    replicas: int,
    autoscaling: Path | None,
    home: Path,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    cpus: float,
) -> None:
    """Run replicas on Ray Serve that follow the store at URL, until Ctrl-C.

    REDHOST_RAY_ADDRESS names a cluster; without it Ray runs on this machine.
    """
    from redhost_ray.deploy import DeployOptions, run_replicas

    run_replicas(
        DeployOptions(
            store=url,
            replicas=replicas,
            autoscaling=None if autoscaling is None else _read(autoscaling),
            home=home,
            host=host,
            port=port,
            hosts=(host, *hosts),
            cpus=cpus,
        )
    )


def _read(file: Path) -> dict[str, object]:
    import msgspec

    import redhost

    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as e:
        raise redhost.UsageError(
            f"cannot read {file}", expected="a JSON object", found=str(e)
        ) from e
