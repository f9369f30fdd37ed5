"""What `redhost check` runs: static checks first, torch only for what passed them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..registry.audit import Target, resolve_targets, static_check
from ..registry.errors import UsageError
from ..registry.violations import Violation
from .keys import chosen_keys

__all__ = ["check_targets", "require_sound"]


def check_targets(
    targets: Sequence[str],
    *,
    home: Path | None,
    backbone: str | None,
    strict: bool = False,
    keys: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Check installed ids, wheels and folders; with no targets, all installed experts.

    Raises:
        UsageError: If keys are given for what has no signature.
    """
    from ..registry.settings import resolve_home
    from ..registry.strict import strict_check

    _require_wheels(targets, keys)
    trusted = chosen_keys(keys)
    found = resolve_targets(targets, home=resolve_home(home), backbone=backbone, keys=trusted)
    violations = {t: static_check(t) for t in found}
    for target in found:
        if not violations[target] and target.files is not None:
            from ..core.verify import verify_expert

            violations[target] = verify_expert(target.files, backbone=target.backbone)
        if strict:
            violations[target] = (*violations[target], *strict_check(target))
    return [_report(t, violations[t]) for t in found]


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


def _report(target: Target, violations: Sequence[Violation]) -> dict[str, Any]:
    return {
        "target": target.name,
        "ok": not violations,
        "violations": [
            {
                "code": v.code,
                "field": v.field,
                "expected": v.expected,
                "found": v.found,
                "hint": v.hint,
            }
            for v in violations
        ],
    }
