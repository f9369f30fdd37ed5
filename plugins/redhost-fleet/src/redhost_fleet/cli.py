"""`redhost push`, `pull`, `promote` and `fleet`. Everything heavy is imported inside commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import click

__all__ = ["fleet", "promote", "pull", "push"]

FOLDER = click.Path(path_type=Path, file_okay=False)
STAGE = click.Choice(["production", "canary"])

url_argument = click.argument("url", envvar="REDHOST_FLEET")
fleet_option = click.option(
    "--fleet", "url", envvar="REDHOST_FLEET", required=True, help="The store: a folder or a URL."
)
home_option = click.option(
    "--home", type=FOLDER, envvar="REDHOST_HOME", help="State folder (default: .redhost here)."
)
question_option = click.option(
    "--question", metavar="NAME", help="The named question that this is about."
)
generation_option = click.option(
    "--generation", type=click.IntRange(min=1), help="Which one (default: the current one)."
)
why_option = click.option("--why", default="", help="The reason, for the history.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@url_argument
@generation_option
@home_option
@question_option
@json_option
def push(
    *, url: str, generation: int | None, home: Path | None, question: str | None, as_json: bool
) -> None:
    """Upload a generation, all its bytes, to the store at URL; it is not served yet.

    What the home knows to be revoked goes along, and that counts at once.
    URL is a folder or an object store (s3://bucket/folder); REDHOST_FLEET sets the default. Each
    question has a store of its own.
    """
    import redhost
    from redhost_fleet.fleet import Fleet

    host, fleet = redhost.Host.open(home, question=question), Fleet(url)
    number = generation or host.session.require_current()
    with _bar("push") as progress:
        done = fleet.push(host.generations, number, progress=progress)
    fleet.push_revoked(host.generations)
    if as_json:
        _print_json(done)
    else:
        click.echo(f"generation {number} is in {url}: {done.sent:,} of {done.bytes:,} bytes sent")


@click.command()
@url_argument
@generation_option
@click.option("--stage", type=STAGE, default="production", show_default=True, help="Whose.")
@home_option
@question_option
@json_option
def pull(
    *,
    url: str,
    generation: int | None,
    stage: str,
    home: Path | None,
    question: str | None,
    as_json: bool,
) -> None:
    """Download the generation that a stage serves, and make it current here."""
    import redhost
    from redhost_fleet.fleet import Fleet

    host, fleet = redhost.Host.open(home, question=question), Fleet(url)
    number = generation or _served(fleet, stage)
    with _bar("pull") as progress:
        fleet.pull(host.generations, number, progress=progress)
    host.rollback(number)
    if as_json:
        _print_json({"generation": number, "home": str(host.home)})
    else:
        click.echo(f"generation {number} of {url} is current in {host.home}")


@click.command()
@click.argument("number", type=click.IntRange(min=1))
@fleet_option
@click.option("--stage", type=STAGE, default="production", show_default=True, help="Which stage.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Of a canary: how many of the requests it answers, 0 to 1.",
)
@click.option("--mirror", is_flag=True, help="Of a canary: it reads all requests, to be compared.")
@click.option(
    "--expect", type=click.IntRange(min=1), help="Only if the stage serves this generation now."
)
@why_option
@json_option
def promote(
    *,
    number: int,
    url: str,
    stage: str,
    share: float,
    mirror: bool,
    expect: int | None,
    why: str,
    as_json: bool,
) -> None:
    """Make a stage serve generation NUMBER, which was pushed; every replica follows.

    If two people promote at once, one succeeds, and the other gets an error that names the first.
    """
    from redhost_fleet.fleet import Fleet

    fleet = Fleet(url)
    last = fleet.stages[stage].last()
    if expect is not None and (last is None or last.generation != expect):
        import redhost

        raise redhost.errors.StaleGenerationError(
            f"{stage} of {url} was not moved",
            expected=f"generation {expect}",
            found="nothing" if last is None else f"generation {last.generation}, by {last.by}",
            hint="See 'redhost fleet history', then decide again.",
        )
    entry = fleet.promote(number, stage=stage, after=last, share=share, mirror=mirror, why=why)
    if as_json:
        _print_json(entry)
    else:
        click.echo(f"{stage} of {url} is generation {number} (entry {entry.sequence})")


@click.group()
def fleet() -> None:
    """Show and control replicas that follow one store."""


@fleet.command()
@fleet_option
@json_option
def status(*, url: str, as_json: bool) -> None:
    """Show the stages, and each replica: served generation, lag, and the experts' shares."""
    from redhost_fleet.documents import one_line
    from redhost_fleet.fleet import Fleet
    from redhost_fleet.status import fleet_status, status_lines

    found = fleet_status(Fleet(url))
    if as_json:
        _print_json(found)
    else:
        click.echo("\n".join(map(one_line, status_lines(found))))


@fleet.command()
@fleet_option
@home_option
@question_option
@json_option
def revoke(*, url: str, home: Path | None, question: str | None, as_json: bool) -> None:
    """Hand what the home here knows to be revoked to every replica, which stops serving it."""
    import redhost
    from redhost_fleet.fleet import Fleet

    host = redhost.Host.open(home, question=question)
    changed = Fleet(url).push_revoked(host.generations)
    revoked = sorted(host.store.revoked())
    if as_json:
        _print_json({"changed": changed, "revoked": revoked})
    else:
        news = "" if changed else ", as before"
        click.echo(f"{len(revoked)} revoked digests are in {url}{news}")


@fleet.command()
@fleet_option
@home_option
@question_option
@json_option
def shares(*, url: str, home: Path | None, question: str | None, as_json: bool) -> None:
    """Write the experts' shares of the texts, over all replicas, into the home here.

    'redhost recompose --prior live' makes a router that expects these shares.
    """
    import redhost
    from redhost_fleet.fleet import Fleet
    from redhost_fleet.status import fleet_status, live_shares

    host = redhost.Host.open(home, question=question)
    found = live_shares(fleet_status(Fleet(url)))
    if found is None:
        raise redhost.MissingError(
            f"no replica of {url} has answered a text with production",
            hint="See 'redhost fleet status'; replicas report every few seconds.",
        )
    redhost.plugins.write_live_shares(host.home, found)
    if as_json:
        _print_json(found)
    else:
        for expert, share in sorted(found.shares.items(), key=lambda item: -item[1]):
            click.echo(f"{expert:<14} {share:>4.0%} of {found.texts:,} texts")


@fleet.command()
@fleet_option
@click.option("--stage", type=STAGE, default="production", show_default=True, help="Whose.")
@json_option
def history(*, url: str, stage: str, as_json: bool) -> None:
    """Show which generations a stage has served, since when, by whom and why."""
    from redhost_fleet.documents import one_line
    from redhost_fleet.fleet import Fleet

    followed = Fleet(url)
    followed.require()
    log = followed.stages[stage]
    entries = [entry for n in log.sequences() if (entry := log.read(n)) is not None]
    if as_json:
        _print_json(entries)
        return
    for entry in entries:
        what = "none" if entry.generation is None else f"generation {entry.generation}"
        share = f", {entry.share:.0%} of the requests" if entry.share else ""
        share += ", mirrored" if entry.mirror else ""
        why = f": {entry.why}" if entry.why else ""
        line = f"{entry.sequence:>4}  {entry.when[:19]}  {what}{share}, by {entry.by}{why}"
        click.echo(one_line(line))


@fleet.command()
@fleet_option
@why_option
@json_option
def rollback(*, url: str, why: str, as_json: bool) -> None:
    """Make production serve the previous generation again."""
    from redhost_fleet.fleet import Fleet

    fleet = Fleet(url)
    last = fleet.stages["production"].last()
    entry = fleet.promote(fleet.previous(), after=last, why=why or "rolled back")
    if as_json:
        _print_json(entry)
    else:
        click.echo(f"production of {url} is generation {entry.generation}")


@fleet.command("end-canary")
@fleet_option
@why_option
@json_option
def end_canary(*, url: str, why: str, as_json: bool) -> None:
    """End the canary; production answers all requests."""
    from redhost_fleet.fleet import Fleet

    entry = Fleet(url).promote(None, stage="canary", why=why or "ended")
    if as_json:
        _print_json(entry)
    else:
        click.echo(f"{url} has no canary")


@fleet.command("judge")
@fleet_option
@click.option("--alarm", default=0.01, show_default=True, help="Share of good canaries lost.")
@click.option("--miss", default=0.01, show_default=True, help="Share of bad canaries promoted.")
@click.option("--margin", default=0.01, show_default=True, help="Accuracy that may be lost.")
@click.option(
    "--declines",
    default=0.05,
    show_default=True,
    help="How many more of the texts it may decline and be promoted.",
)
@click.option(
    "--every", type=click.FloatRange(min=0.1), help="Look again every so many seconds, for ever."
)
@json_option
def judge_command(
    *,
    url: str,
    alarm: float,
    miss: float,
    margin: float,
    declines: float,
    every: float | None,
    as_json: bool,
) -> None:
    """Promote the canary, end it or let it continue, by its labelled texts.

    Labels come through POST /v1/feedback. The test is anytime-valid: the error rates hold however
    often it is run. The history has the figures.
    """
    import redhost
    from redhost_fleet.documents import one_line
    from redhost_fleet.fleet import Fleet
    from redhost_fleet.rollout import Limits, judge

    followed = Fleet(url)
    limits = Limits(alarm=alarm, miss=miss, margin=margin, declines=declines)
    shown = ""
    while True:
        try:
            found = judge(followed, limits)
        except (redhost.errors.StoreError, redhost.errors.StaleGenerationError) as e:
            if every is None:
                raise
            click.echo(e.reason, err=True)
            sleep(every)
            continue
        line = "no canary" if found is None else one_line(f"{found[0].action}: {found[0].why}")
        if as_json and (every is None or line != shown):
            _print_json(None if found is None else found[0])
        elif line != shown:
            click.echo(line)
        if every is None:
            return
        shown = line
        sleep(every)


@fleet.command()
@fleet_option
@json_option
def forget(*, url: str, as_json: bool) -> None:
    """Remove the reports of lost replicas."""
    from redhost_fleet.fleet import Fleet
    from redhost_fleet.status import fleet_status

    followed = Fleet(url)
    lost = [r.report.replica for r in fleet_status(followed).replicas if r.lost]
    for replica in lost:
        followed.forget(replica)
    if as_json:
        _print_json(lost)
    else:
        click.echo(f"{len(lost)} lost replicas are forgotten")


@fleet.command()
@fleet_option
@click.option(
    "--keep",
    default=10,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many of each stage's entries, and of what was pushed, stay.",
)
@click.option("--dry-run", is_flag=True, help="Remove nothing.")
@json_option
def gc(*, url: str, keep: int, dry_run: bool, as_json: bool) -> None:
    """Remove generations that no stage has served recently, and their objects."""
    from redhost_fleet.fleet import Fleet

    done = Fleet(url).gc(keep, dry_run=dry_run)
    if as_json:
        _print_json(done)
        return
    would = "would be" if dry_run else "are"
    click.echo(f"{len(done.generations)} generations and {done.objects} objects {would} removed")


def _served(fleet: Any, stage: str) -> int:
    import redhost

    fleet.require()
    entry = fleet.stages[stage].last()
    if entry is None or entry.generation is None:
        raise redhost.MissingError(
            f"{stage} of {fleet.storage.url} serves nothing", hint="Run 'redhost promote' first."
        )
    return int(entry.generation)


def _print_json(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows progress on stderr, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(done - bar.pos)

        yield progress
