"""What `redhost check` runs: static checks first, torch only for what passed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..registry.audit import Target, resolve_targets, static_check
from ..registry.errors import UsageError
from ..registry.files import ExpertFiles
from ..registry.violations import Violation
from .common import kept_jobs
from .keys import chosen_keys

if TYPE_CHECKING:
    from ..core.engines.crew import Crew
    from .printed import Report

__all__ = ["check_targets", "require_sound"]


def check_targets(
    targets: Sequence[str],
    *,
    home: Path | None,
    backbone: str | None,
    strict: bool = False,
    keys: tuple[str, ...] = (),
    crew: Crew | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Report]:
    """Check installed ids, wheels and folders; with no targets, all installed experts.

    Args:
        targets: What to check.
        home: The state folder.
        backbone: Which backbone to check against, when several are installed.
        strict: Whether to ask for what a published expert should have as well.
        keys: Files of public keys, one of which must have signed each wheel.
        crew: Who computes what has to be computed; None for this process.
        progress: Called with (experts computed, experts in all), where there is a crew.

    Raises:
        UsageError: If keys are given for what has no signature.
    """
    from ..registry.settings import resolve_home
    from ..registry.strict import strict_check

    _require_wheels(targets, keys)
    trusted = chosen_keys(keys)
    found = resolve_targets(targets, home=resolve_home(home), backbone=backbone, keys=trusted)
    violations = {t: static_check(t) for t in found}
    sound = {t: t.files for t in found if t.files is not None and not violations[t]}
    violations |= _verify(sound, home=home, crew=crew, progress=progress)
    if strict:
        violations = {t: (*violations[t], *strict_check(t)) for t in found}
    return [_report(t, violations[t]) for t in found]


def _verify(
    sound: Mapping[Target, ExpertFiles],
    *,
    home: Path | None,
    crew: Crew | None,
    progress: Callable[[int, int], None] | None,
) -> dict[Target, tuple[Violation, ...]]:
    """Compute what passed every static check; torch is imported only if anything did."""
    if not sound:
        return {}
    if crew is None:
        from ..core.composing.verify import verify_expert

        return {t: verify_expert(files, backbone=t.backbone) for t, files in sound.items()}
    from ..core.engines.certify import Claim, certify

    claims = [Claim(name=t.name, files=files, backbone=t.backbone) for t, files in sound.items()]
    verdicts = certify(claims, crew=crew, kept=kept_jobs(home), progress=progress)
    return dict(zip(sound, verdicts, strict=True))


def require_sound(project: Path, *, home: Path | None) -> None:
    """Check a project's package.

    Raises:
        ContractError: With its first violation, if it has any.
    """
    from ..registry.settings import resolve_home

    [target] = resolve_targets([str(project)], home=resolve_home(home), backbone=None)
    found = static_check(target)
    if found:
        raise found[0].error(f"{project} cannot be packed")


def _require_wheels(targets: Sequence[str], keys: tuple[str, ...]) -> None:
    """Refuse to say ok to what no key can vouch for: a signature covers a wheel's file."""
    others = [t for t in targets if not (t.endswith(".whl") and Path(t).is_file())]
    if keys and (others or not targets):
        found = others[0] if others else "none"
        hint = "Name wheels only, or leave out --key."
        raise UsageError("--key needs wheels to check", found=found, hint=hint)


def _report(target: Target, violations: Sequence[Violation]) -> Report:
    return {"target": target.name, "ok": not violations, "violations": list(violations)}
