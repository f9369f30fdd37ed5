"""Which experts join the next composition: installed packages, checked again, with rejections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...registry.environment.status import PackageStatus
from ...registry.errors import (
    CompositionError,
    ContractError,
    HarmError,
    HijackError,
    MissingError,
    PluginError,
    RedhostError,
    UsageError,
    short,
)
from ...registry.home.composition import Composition, Member
from ...registry.package.checked import Checked, Violation
from ...registry.package.manifest import BackboneManifest
from ...registry.package.readers import read_expert
from ..bus.bus import BusConfig
from ..model.build import LoadedExpert, Providers, make_expert
from ..plugins.manager import Plugins
from ..receipt import LeftOut
from .select import Selection

Verify = Callable[[LoadedExpert], Violation | None]

SAME_HINT = "Remove one of the two with 'redhost remove ID', or give the new one rows of its own."
"""The hint for a newcomer with the card of another expert."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateSet:
    """The outcome of the checks.

    Attributes:
        experts: The experts that passed every check, by id in sorted order.
        statuses: Their installed packages, by id.
        rejected: Installed packages that did not pass, with the reasons.
        withdrawn: Members of the previous composition that are gone or disabled.
    """

    experts: Mapping[str, LoadedExpert]
    statuses: Mapping[str, PackageStatus]
    rejected: tuple[LeftOut, ...]
    withdrawn: tuple[str, ...]


def load_candidates(
    selection: Selection,
    *,
    previous: Composition | None,
    bus: BusConfig,
    plugins: Plugins,
    providers: Providers,
    verify: Verify,
) -> CandidateSet:
    """Read, check and build every installed expert.

    Args:
        selection: The packages that passed the static checks, and those that failed them.
        previous: The current composition; its members may not fail silently.
        bus: The bus they join.
        plugins: The plugins that make the parts.
        providers: Filled with the plugins that made a part.
        verify: The last check of a built expert, e.g. of its effect outside its domain.

    Raises:
        HarmError: If a member of the previous composition now fails its contract or canary.
        MissingError: If no expert passes.
    """
    experts: dict[str, LoadedExpert] = {}
    failed: list[tuple[PackageStatus, Violation]] = []
    for status in selection.statuses:
        try:
            rank = selection.ranks.get(status.id or "")
            loaded = _load(status, rank, bus=bus, plugins=plugins, providers=providers)
            wrong = verify(loaded.value) if loaded.value else loaded.violations[0]
            # The background may name the domain of the original, and not that of a copy.
            if wrong is not None and wrong.code == "off_domain":
                wrong = _as_copy(wrong, same_rows(status, selection.statuses))
        except Exception as e:  # an expert's material can make any call here fail
            if not is_about_material(e):
                raise
            loaded, wrong = Checked(None), fault(e)
        if loaded.value and wrong is None:
            experts[loaded.value.files.manifest.id] = loaded.value
        elif wrong:
            failed.append((status, wrong))
    members = {m.id: m for m in previous.experts} if previous else {}
    for status, violation in failed:
        _refuse_failing(members, experts, status, violation)
    if not experts:
        raise _nothing(failed, selection.files.manifest)
    rejected = [LeftOut(id=_name(x), code=v.code, reason=v.reason) for x, v in failed]
    return CandidateSet(
        experts={i: experts[i] for i in sorted(experts)},
        statuses={x.id: x for x in selection.statuses if x.id in experts and not x.violations},
        rejected=tuple(sorted(rejected, key=lambda x: (x.id, x.code))),
        withdrawn=tuple(sorted(members.keys() - experts.keys())),
    )


def _load(
    status: PackageStatus,
    rank: int | None,
    *,
    bus: BusConfig,
    plugins: Plugins,
    providers: Providers,
) -> Checked[LoadedExpert]:
    """Load one package from bytes read now, at a rank, or return what is wrong."""
    if status.violations:
        return Checked(None, status.violations)
    read = Checked(status.files) if status.files else read_expert(status.package)
    if read.value is None:
        return Checked(None, read.violations)
    if read.value.digest != status.digest:
        hint = "Try again once no installation is running."
        expected, found = f"{short(status.digest or '')}, as audited", short(read.value.digest)
        wrong = Violation("weights_digest", "package", expected, found, hint)
        return Checked(None, (wrong,))
    files = replace(read.value, rank=rank)
    return make_expert(files, bus=bus, plugins=plugins, providers=providers)


def is_about_material(error: Exception) -> bool:
    """Return whether an error, raised while handling one expert's material, is due to that expert.

    A full disk or an unreadable cache, for example, is not.
    """
    if isinstance(error, RedhostError):
        return isinstance(error, (ContractError, PluginError, UsageError))
    return not isinstance(error, (OSError, MemoryError))


def _as_copy(wrong: Violation, copied: Violation | None) -> Violation:
    """Return that an expert is a copy, and what is wrong with it; the latter if it is none."""
    return replace(copied, found=f"{copied.found} ({wrong.reason})") if copied else wrong


def same_rows(status: PackageStatus, others: Sequence[PackageStatus]) -> Violation | None:
    """Return a violation if an expert has the card and labels of another, like a copy of it."""
    own = status.manifest
    if own is None or own.card.sha256 is None:
        return None
    for other in (x.manifest for x in others if x.id != status.id and not x.violations):
        if other and other.card.sha256 == own.card.sha256 and {*other.labels} == {*own.labels}:
            rows = own.card.fit + own.card.gate
            found = f"the {rows} rows of expert {other.id!r}, with the same labels"
            return Violation("same_rows", "card", "rows of its own", found, SAME_HINT)
    return None


def fault(error: Exception) -> Violation:
    """Return an error as a violation of the expert that caused it."""
    if not isinstance(error, RedhostError):
        found = f"{type(error).__name__}: {error}"[:300]
        hint = "Ask its author for a new build."
        return Violation("not_computable", "package", "material that can be computed", found, hint)
    codes = {
        PluginError: "form_unknown",
        CompositionError: "not_computable",
        HarmError: "harm",
        HijackError: "hijack",
    }
    code = codes.get(type(error), "card_rows")
    expected = error.expected or "a part that can be made"
    return Violation(code, "package", expected, error.reason, error.hint)


def _refuse_failing(
    members: Mapping[str, Member],
    experts: Mapping[str, LoadedExpert],
    status: PackageStatus,
    violation: Violation,
) -> None:
    """Refuse to lose a member that is installed but broken (law 3).

    An unreadable manifest yields no id; the member is then identified by its distribution.
    """
    dist = status.package.dist
    same = (m for m in members.values() if status.id == m.id or dist == m.dist)
    lost = next((m for m in same if m.id not in experts), None)
    if lost is not None and violation.code != "disabled":
        hint = _other_backbone(lost) if violation.code == "backbone_mismatch" else violation.hint
        raise HarmError(
            f"expert {lost.id!r} is in the current composition and now fails ({violation.code})",
            found=violation.reason,
            hint=f"{hint} To go on without it: 'redhost disable {_name(status)}'.",
        )


def _other_backbone(member: Member) -> str:
    """Return the hint for a member whose installed build is for another backbone (e.g. ported)."""
    return (
        f"Install what was composed again: 'redhost add WHEEL' of {member.dist} {member.version}; "
        "or go on with the backbone of the installed build: 'redhost rollback N' to a generation "
        "on it, as 'redhost history' lists them."
    )


def _name(status: PackageStatus) -> str:
    return status.id or status.package.dist


def _nothing(
    failed: list[tuple[PackageStatus, Violation]], backbone: BackboneManifest
) -> MissingError:
    if failed:
        status, violation = failed[0]
        return MissingError(
            "no installed expert can be attached",
            expected=f"an expert for backbone {backbone.id!r}",
            found=f"{_name(status)}: {violation.reason}",
            hint=violation.hint,
        )
    return MissingError(
        "no experts are installed",
        expected=f"a package with an expert for backbone {backbone.id!r}",
        hint="For example: pip install red-expert-range3",
    )
