"""All checks, in order; a check that raises is a finding, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from redhost.errors import UnknownNameError
from redhost.registry.errors import RedhostError
from redhost_doctor.backbone import check_backbone
from redhost_doctor.composed import check_experts, check_lock, check_plugins, check_settings
from redhost_doctor.environment import (
    check_python,
    check_requirements,
    check_torch,
    check_versions,
)
from redhost_doctor.finding import Finding, Subject, fail
from redhost_doctor.folder import check_home, check_processes, check_space
from redhost_doctor.index import check_index
from redhost_doctor.machine import check_temporary, check_threads
from redhost_doctor.stored import check_generations, check_store

CHECKS: Mapping[str, Callable[[Subject], Iterator[Finding]]] = {
    "python": check_python,
    "versions": check_versions,
    "requirements": check_requirements,
    "torch": check_torch,
    "threads": check_threads,
    "temporary": check_temporary,
    "index": check_index,
    "home": check_home,
    "space": check_space,
    "processes": check_processes,
    "settings": check_settings,
    "generations": check_generations,
    "store": check_store,
    "lock": check_lock,
    "backbone": check_backbone,
    "plugins": check_plugins,
    "experts": check_experts,
}
"""Every check by name, in an order in which later mends need what earlier checks examine."""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `redhost doctor`.

    Attributes:
        home: The state folder.
        ok: Whether nothing fails; there may be warnings.
        findings: What was found, at least one of each check, in their order.
    """

    home: str
    ok: bool
    findings: tuple[Finding, ...]


def examine(home: Path, *, checks: Collection[str] = (), deep: bool = False) -> Examination:
    """Examine the environment and a home; nothing is changed, and no code of a package runs.

    Args:
        home: The state folder.
        checks: The checks to run, of `CHECKS`; all when empty.
        deep: Whether every stored and installed byte is hashed.

    Raises:
        UnknownNameError: If there is no such check.
    """
    for name in checks:
        if name not in CHECKS:
            raise UnknownNameError("check", name, CHECKS)
    subject, findings = Subject(home=home, deep=deep), list[Finding]()
    for name, check in CHECKS.items():
        if not checks or name in checks:
            findings += _guarded(name, check, subject)
    good = all(finding.state != "fail" for finding in findings)
    return Examination(home=str(home), ok=good, findings=tuple(findings))


def _guarded(
    name: str, check: Callable[[Subject], Iterator[Finding]], subject: Subject
) -> list[Finding]:
    """Return a check's findings; an error that stops it is the only one."""
    try:
        return [*check(subject)]
    except RedhostError as e:
        return [fail(name, str(e), mend="")]
    except Exception as e:  # whatever is broken here, the other checks are wanted all the more
        return [fail(name, f"cannot be examined: {type(e).__name__}: {e}", mend="")]
