"""`redhost lab fleet`: a fleet under constant kills, outages and changes."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from red_lab.metrics import read_metrics, write_results
from red_lab.study import WORK, out_option

import redhost

__all__ = ["fleet"]

SECTIONS = ("storm", "rollouts", "canaries", "cost", "throughput", "ray", "growth")


@click.command()
@click.option(
    "--section",
    "sections",
    type=click.Choice(SECTIONS),
    multiple=True,
    help="Only this one; repeat for more. What is not run stays as it was.",
)
@click.option("--replicas", default=8, show_default=True, help="Of the storm.")
@click.option("--requests", default=100_000, show_default=True, help="Answers in the storm.")
@click.option("--clients", default=6, show_default=True, help="Who ask at a time in the storm.")
@click.option("--rollouts", default=1000, show_default=True, help="Simulated canaries of a kind.")
@click.option("--runs", default=9, show_default=True, help="Rounds of the cost.")
@click.option("--seed", default=0, show_default=True, help="Where randomness comes from.")
@click.option("--validation", is_flag=True, help="Judge real canaries on training rows set aside.")
@out_option("fleet")
@WORK
def fleet(
    *,
    sections: tuple[str, ...],
    replicas: int,
    requests: int,
    clients: int,
    rollouts: int,
    runs: int,
    seed: int,
    validation: bool,
    out: Path,
    work: Path,
) -> None:
    """Kill replicas while the pointer moves; try canaries; time what they cost.

    The storm's store speaks S3 (`pip install moto[server] s3fs`), behind a network that is slow
    or cut. Exits with 1 if any request failed, was mixed, or was stale in the storm.
    """
    import torch

    from redhost_fleet.study import canaries, growth, throughput, trial_cost
    from redhost_fleet.study import rollouts as simulated

    torch.set_num_threads(1)
    chosen, found = sections or SECTIONS, dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "growth" in chosen:
            found["growth"] = growth.measure(seed=seed)
        if "rollouts" in chosen:
            found["rollouts"] = simulated.measure(rollouts=rollouts, labels=2000, seed=seed)
        if "canaries" in chosen:
            orders = {"rollouts": rollouts, "labels": 2000, "seed": seed}
            found["canaries"] = canaries.measure(**orders, work=work, validation=validation)
        if "cost" in chosen:
            found["cost"] = trial_cost.measure(runs=runs)
        if "throughput" in chosen:
            found["throughput"] = throughput.measure(
                folder / "throughput", replicas=(1, 2, 4, 8), seconds=15
            )
        if "ray" in chosen:
            found["ray"] = throughput.measure_ray(folder / "ray", nodes=(1, 2), seconds=15)
        if "storm" in chosen:
            found["storm"] = _storm(
                folder, replicas=replicas, requests=requests, clients=clients, seed=seed
            )
    click.echo(_write(out, found))
    storm = found.get("storm", {})
    if storm.get("failed") or storm.get("mixed") or storm.get("stale"):
        sys.exit(1)


def _write(out: Path, found: Mapping[str, Any]) -> Path:
    """Write the measured sections, keep the existing others, and write the page."""
    from redhost_fleet.study.report import page

    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    metrics = {**read_metrics(out), "schema": "redhost-lab.fleet/1", "machine": machine, **found}
    return write_results(metrics, out, page=page)


def _storm(folder: Path, *, replicas: int, requests: int, clients: int, seed: int) -> Any:
    from redhost_fleet.study.proxy import proxied
    from redhost_fleet.study.storm import measure

    with s3_server() as port, proxied(port) as proxy:
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("fleet")
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
        return measure(
            folder / "storm",
            proxy,
            "s3://fleet/models",
            replicas=replicas,
            requests=requests,
            clients=clients,
            seed=seed,
        )


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Run an S3-compatible server as a separate process; yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = redhost.plugins.python_command(
        "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)
    )
    with subprocess.Popen(  # noqa: S603  (our own command)
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield port
        finally:
            child.terminate()
