"""The command check: static checks first; torch only for what passed them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from redhost.commands.common import (
    LOCAL,
    backbone_option,
    bar,
    chosen_keys,
    engine_options,
    home_option,
    json_option,
    key_option,
    open_workers,
    print_json,
)
from redhost.registry.errors import UsageError
from redhost.registry.package.checked import Violation

from .targets import Target, resolve_targets, static_check

if TYPE_CHECKING:
    from redhost.core.session import Workers


class Report(TypedDict):
    """The result of a check.

    Attributes:
        target: The target as typed, or the id of an installed expert.
        ok: Whether there are no violations.
        violations: The violations, the first failure first.
    """

    target: str
    ok: bool
    violations: list[Violation]


@click.command()
@click.argument("targets", nargs=-1)
@home_option
@backbone_option
@click.option("--strict", is_flag=True, help="Also require what a published expert should have.")
@key_option
@engine_options
@json_option("list[redhost_author.check_cli.Report]")
def check(
    *,
    targets: tuple[str, ...],
    home: Path | None,
    backbone: str | None,
    strict: bool,
    keys: tuple[str, ...],
    engine: str,
    workers: int,
    as_json: bool,
) -> None:
    """Check experts, or backbones, against their contract.

    TARGETS are installed ids, wheels or folders; without any, all installed experts are checked.
    """
    others = None if engine == LOCAL and workers == 1 else open_workers(engine, workers)
    with bar("check") as progress:
        reports = check_targets(
            targets,
            home=home,
            backbone=backbone,
            strict=strict,
            keys=keys,
            workers=others,
            progress=progress,
        )
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            click.echo(f"{report['target']}: {'ok' if report['ok'] else 'failed'}")
            for v in report["violations"]:
                click.echo(f"  {v.field}: expected {v.expected}, found {v.found}. {v.hint}")
    if not all(report["ok"] for report in reports):
        sys.exit(1)


def check_targets(
    targets: Sequence[str],
    *,
    home: Path | None,
    backbone: str | None,
    strict: bool = False,
    keys: tuple[str, ...] = (),
    workers: Workers | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Report]:
    """Check installed ids, wheels and folders; with no targets, all installed experts.

    Args:
        targets: What to check.
        home: The state folder.
        backbone: The backbone to check against, when several are installed.
        strict: Whether to also require what a published expert should have.
        keys: Files of public keys, one of which must have signed each wheel.
        workers: The workers that compute results; None for this process.
        progress: Called with (experts computed, total), if there are workers.

    Raises:
        UsageError: If keys are given for a target that cannot be signed.
    """
    from redhost.registry.queries.settings import resolve_home

    from .strict import strict_check

    _require_wheels(targets, keys)
    resolved = resolve_targets(
        targets, home=resolve_home(home), backbone=backbone, keys=chosen_keys(keys)
    )
    violations = {t: static_check(t) for t in resolved}
    passed = [t for t in resolved if not violations[t]]
    violations |= _verify(passed, home=home, workers=workers, progress=progress)
    if strict:
        violations = {t: (*faults, *strict_check(t)) for t, faults in violations.items()}
    return [
        {"target": t.name, "ok": not faults, "violations": list(faults)}
        for t, faults in violations.items()
    ]


def _verify(
    passed: Sequence[Target],
    *,
    home: Path | None,
    workers: Workers | None,
    progress: Callable[[int, int], None] | None,
) -> dict[Target, tuple[Violation, ...]]:
    """Check by computing what passed every static check; torch is imported only if needed."""
    if not passed:
        return {}
    from redhost_author.verifying import Verifier

    verifier = Verifier()
    bases = [(t, t.backbone) for t in passed if t.kind == "backbone"]
    verified = {t: verifier.backbone(base) for t, base in bases if base is not None}
    experts = [(t, t.files) for t in passed if t.files is not None]
    if workers is None:
        return verified | {t: verifier.expert(e, backbone=t.backbone) for t, e in experts}
    results = workers.verify(
        [(t.name, e, t.backbone) for t, e in experts], home=home, progress=progress
    )
    return verified | {t: result for (t, _), result in zip(experts, results, strict=True)}


def _require_wheels(targets: Sequence[str], keys: tuple[str, ...]) -> None:
    """Refuse targets that cannot be signed: a signature covers a wheel's file."""
    others = [t for t in targets if not (t.endswith(".whl") and Path(t).is_file())]
    if keys and (others or not targets):
        hint = "Name wheels only, or leave out --key."
        raise UsageError(
            "--key needs wheels to check", found=others[0] if others else "none", hint=hint
        )
