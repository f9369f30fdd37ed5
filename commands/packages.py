"""Commands that change the environment: add, remove."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from .common import (
    backbone_option,
    bar,
    chosen_keys,
    composition_options,
    device_option,
    json_option,
    key_option,
    open_host,
    print_json,
    tolerance_option,
)
from .receipts import print_receipt

if TYPE_CHECKING:
    from ..core.composition.options import RecomposeKeywords
    from ..registry.wheel.wheel import Wheel


_router_option = click.option("--router", metavar="KIND[:OPTIONS]", help="Use another router.")
_accept_option = click.option("--accept", is_flag=True, help="Proceed if a domain loses more.")


@click.command()
@click.argument("target", metavar="WHEEL|NAME")
@click.option("--index-url", metavar="URL", help="Download NAME from this index.")
@click.option(
    "--find-links",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Take NAME from a folder of wheels; no index.",
)
@key_option
@click.option(
    "--replace",
    metavar="ID",
    help="The expert to replace, if the wheel has its distribution's name.",
)
@_router_option
@click.option(
    "--level",
    type=click.Choice(["row", "full"]),
    help="Retrain the whole router, or only the new row (default: full).",
)
@tolerance_option
@_accept_option
@click.option(
    "--try",
    "try_others",
    is_flag=True,
    help="If it harms a domain, try other routers and report which would accept it.",
)
@composition_options
@backbone_option
@device_option
@json_option("core.composition.packages.Added")
def add(
    *,
    target: str,
    index_url: str | None,
    find_links: str | None,
    keys: tuple[str, ...],
    replace: str | None,
    home: Path | None,
    backbone: str | None,
    device: str | None,
    as_json: bool,
    **keywords: Unpack[RecomposeKeywords],
) -> None:
    """Audit a wheel, compose with it, then install it.

    It joins the composition of the question that it answers. It is installed only if the wheel
    matches its RECORD, the expert fulfils its contract, and no domain is harmed. A NAME is
    downloaded first; a path uses no network. If the same wheel is composed and installed already,
    nothing changes, unless an option specifies how to compose.
    """
    from ..registry.environment.installer import fetch, require_free
    from ..registry.queries.inventory import joins_in
    from ..registry.queries.settings import resolve_home

    trusted = chosen_keys(keys)
    _refuse_id(resolve_home(home), target, placed=bool(index_url or find_links))
    wheel = fetch(target, index_url=index_url, find_links=find_links, keys=trusted)
    require_free(wheel.package)  # before torch is imported, so that a refusal takes no time
    home = joins_in(resolve_home(home), wheel)
    if not any({**keywords, "try_others": False}.values()) and _composed_already(
        home, wheel, as_json=as_json
    ):
        return
    from ..core.composition.packages import add as add_package

    before = _installed_digest(wheel)
    with bar("add") as keywords["progress"]:
        host = open_host(home, backbone=backbone, device=device)
        added = add_package(host.session, wheel, replace=replace, **keywords)
    if as_json:
        print_json(added)
        return
    print_receipt(added.receipt)
    replaced = f", in place of {added.replaced}" if added.replaced else ""
    click.echo(
        f"installed  {added.dist} {added.version}{replaced} (wheel sha256:{added.wheel[:12]}…"
        f"{f', from {wheel.source}' if find_links or index_url else ''})"
    )
    if added.replaced == added.version and before not in {None, added.digest}:
        click.echo(
            f"hint       another build of {added.version} was installed: raise the version in "
            "pyproject.toml, so that people can tell them apart"
        )
    if added.older_than:
        click.echo(f"warning    older than {added.older_than}, which was here")
    if added.signer:
        click.echo(f"signed by  sha256:{added.signer[:12]}…")


def _refuse_id(home: Path, target: str, *, placed: bool) -> None:
    """Refuse to download a target named like an expert's id that is another distribution.

    Raises:
        UsageError: If the target is an id, but not the name of that expert's distribution.
    """
    from ..registry.errors import UsageError
    from ..registry.package.discover import canonical
    from ..registry.queries.inventory import dists_of

    name, *_ = re.split(r"[\s=<>!~]", target, maxsplit=1)
    # Not Path.exists: it raises if the name is too long.
    is_file = os.path.exists(target) and not (placed and Path(target).name == target)  # noqa: PTH110
    dists = () if is_file else dists_of(home, name)
    if dists and canonical(name) not in map(canonical, dists):
        raise UsageError(
            f"{name!r} is the id of an expert, and nothing was downloaded",
            expected="a wheel, or the name of a distribution",
            hint=f"Did you mean {' or '.join(map(repr, dists))}?",
        )


def _installed_digest(wheel: Wheel) -> str | None:
    """Return the digest of the expert installed under a wheel's distribution, if there is one."""
    from ..registry.environment.installer import find
    from ..registry.package.readers import read_expert

    package = find(wheel.package.dist)
    files = None if package is None else read_expert(package).value
    return None if files is None else files.digest


def _composed_already(home: Path, wheel: Wheel, *, as_json: bool) -> bool:
    """Return whether the same wheel is already composed and installed; if so, print that."""
    import msgspec

    from ..registry.home.generations import Generations
    from ..registry.queries.inventory import composed_from

    member, generations = composed_from(home, wheel), Generations(home)
    number = generations.current()
    if member is None or number is None or member.digest in generations.store.revoked():
        return False
    if as_json:
        receipt = msgspec.json.decode(generations.file(number, "receipt.json"))
        print_json(
            {"signer": "", "source": "", "older_than": None}
            | msgspec.to_builtins(member)
            | {"replaced": None, "receipt": receipt}
        )
    else:
        click.echo(
            f"{member.dist} {member.version} is installed, and composed in generation {number} "
            "already: nothing changed"
        )
    return True


@click.command()
@click.argument("expert_id", metavar="ID")
@click.option("--purge", is_flag=True, help="Delete its stored copies as well.")
@_router_option
@tolerance_option
@_accept_option
@composition_options
@device_option
@json_option("core.composition.packages.Removed")
def remove(
    *,
    expert_id: str,
    purge: bool,
    home: Path | None,
    device: str | None,
    as_json: bool,
    **keywords: Unpack[RecomposeKeywords],
) -> None:
    """Compose without an expert, publish that, then uninstall it."""
    from ..registry.queries.inventory import home_of_expert
    from ..registry.queries.settings import resolve_home

    home = home_of_expert(resolve_home(home), expert_id)
    from ..core.composition.packages import remove as remove_package

    with bar("remove") as keywords["progress"]:
        session = open_host(home, device=device).session
        removed = remove_package(session, expert_id, purge=purge, **keywords)
    if as_json:
        print_json(removed)
        return
    if removed.receipt is not None:
        print_receipt(removed.receipt)
    if removed.dist is not None:
        click.echo(f"uninstalled  {removed.dist} {removed.version}")
    if purge:
        click.echo(f"purged  {len(removed.purged)} stored copies of {removed.id!r}")
    if removed.unreachable:
        click.echo(
            "generations that cannot be rolled back to any more: "
            + ", ".join(map(str, removed.unreachable))
        )
