"""The implementation of `redhost check`: static checks first; torch only for what passed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..registry.errors import UsageError
from ..registry.package.checked import Violation
from ..registry.queries.check import Target, resolve_targets, static_check
from .keys import chosen_keys

if TYPE_CHECKING:
    from ..core.session import Workers
    from .printed import Report


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
    from ..registry.queries.check import strict_check
    from ..registry.queries.settings import resolve_home

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
    from ..core.model.verify import Verifier

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
