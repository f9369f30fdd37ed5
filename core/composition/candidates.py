"""Which experts join the next composition: installed packages, checked again, with rejections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from ...registry.environment.status import PackageStatus
from ...registry.errors import HarmError, MissingError
from ...registry.home.composition import Composition, Member
from ...registry.package.checked import Checked, Violation
from ...registry.package.manifest import BackboneManifest
from ...registry.package.readers import ExpertFiles
from ..bus.bus import BusConfig
from ..model.build import BuiltExperts, LoadedExpert, Providers, make_expert
from ..plugins.manager import Plugins
from ..receipt import LeftOut
from .refusal import Code, Refusal, is_about_material, refusal_of
from .select import Selection

SAME_HINT = "Remove one of the two with 'redhost remove ID', or give the new one rows of its own."
"""The hint for a newcomer with the card of another expert."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateSet:
    """The outcome of the checks.

    Attributes:
        experts: The experts that passed every check, by id in sorted order.
        statuses: Their installed packages, by id.
        rejected: Why installed packages did not pass.
        withdrawn: Members of the previous composition that are gone or disabled.
    """

    experts: Mapping[str, LoadedExpert]
    statuses: Mapping[str, PackageStatus]
    rejected: tuple[Refusal, ...]
    withdrawn: tuple[str, ...]

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The receipt's lines on what was rejected."""
        lines = [
            LeftOut(id=str(r.expert), code=v.code, reason=v.reason)
            for r in self.rejected
            for v in r.violations[:1]
        ]
        return tuple(sorted(lines, key=lambda line: (line.id, line.code)))


def load_candidates(
    selection: Selection,
    *,
    previous: Composition | None,
    bus: BusConfig,
    plugins: Plugins,
    providers: Providers,
    verify: Callable[..., Violation | None],
    built: BuiltExperts = MappingProxyType({}),
) -> CandidateSet:
    """Build and check every expert of a selection.

    Args:
        selection: The packages that passed the static checks, and those that failed them.
        previous: The current composition; its members may not fail silently.
        bus: The bus they join.
        plugins: The plugins that make the parts.
        providers: Filled with the plugins that made a part.
        verify: The last check of a built expert, of its effect outside its domain; ``learnt`` is
            whether these very bytes were composed before.
        built: Experts that are built and checked already.

    Raises:
        HarmError: If a member of the previous composition now fails its contract or canary.
        MissingError: If no expert passes.
    """
    # By digest and not by id: a new build is measured as a newcomer is.
    learnt = frozenset(previous.members().values() if previous else ())
    make = partial(make_expert, bus=bus, plugins=plugins, providers=providers, built=built)
    outcomes = [
        (x, _load(x, selection, make, partial(verify, learnt=x.digest in learnt)))
        for x in selection.statuses
    ]
    experts = {e.files.manifest.id: e for _, e in outcomes if not isinstance(e, Refusal)}
    failed = [(x, replace(r, expert=_name(x))) for x, r in outcomes if isinstance(r, Refusal)]
    members = {m.id: m for m in previous.experts} if previous else {}
    # Members first: one that fails is never left out as a newcomer would be (law 3).
    for status, refusal in failed:
        _refuse_failing(members, experts, status, refusal.violations[0])
    if not experts:
        raise _nothing([r for _, r in failed], selection.files.manifest)
    return CandidateSet(
        # Sorted, so that the order of installation changes no bit of the router.
        experts={i: experts[i] for i in sorted(experts)},
        statuses={x.id: x for x in selection.statuses if x.id in experts and not x.violations},
        rejected=tuple(refusal for _, refusal in failed),
        withdrawn=tuple(sorted(members.keys() - experts.keys())),
    )


def _load(
    status: PackageStatus,
    selection: Selection,
    make: Callable[[ExpertFiles], Checked[LoadedExpert]],
    verify: Callable[[LoadedExpert], Violation | None],
) -> LoadedExpert | Refusal:
    """Load one package from the bytes that were checked, or return what is wrong."""
    if status.violations or status.files is None:
        refusal = Refusal(code=Code.CONTRACT, violations=status.violations)
        return selection.refused.get(str(status.id), refusal)
    try:
        loaded = make(status.files)
        wrong = verify(loaded.value) if loaded.value else loaded.violations[0]
    except Exception as e:  # an expert's material can make any call here fail
        if not is_about_material(e):
            raise
        return refusal_of(e)
    if loaded.value and wrong is None:
        return loaded.value
    broken = (wrong,) if wrong else loaded.violations
    # The background may name the domain of the original, and not that of a copy.
    others = selection.statuses if broken[0].code == "off_domain" else ()
    copied = same_rows(status, others, because=broken[0].reason)
    return copied or Refusal(code=Code.CONTRACT, violations=broken)


def same_rows(
    status: PackageStatus, others: Sequence[PackageStatus], *, because: str = ""
) -> Refusal | None:
    """Return a refusal if an expert has the card and labels of another, like a copy of it.

    Args:
        status: The expert.
        others: All experts.
        because: What else is wrong with it.
    """
    own = status.manifest
    if own is None or own.card.sha256 is None:
        return None
    for other in (x.manifest for x in others if x.id != status.id and not x.violations):
        # Labels too: two teams may label one set of texts for different purposes.
        if other and other.card.sha256 == own.card.sha256 and {*other.labels} == {*own.labels}:
            rows = own.card.fit + own.card.gate
            found = f"the {rows} rows of expert {other.id!r}, with the same labels"
            found += f" ({because})" if because else ""
            wrong = Violation("same_rows", "card", "rows of its own", found, SAME_HINT)
            return Refusal(code=Code.SAME_ROWS, violations=(wrong,))
    return None


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
    # The user disabled it by name; anything else would take a member away unasked.
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


def _nothing(failed: Sequence[Refusal], backbone: BackboneManifest) -> MissingError:
    if failed:
        violation = failed[0].violations[0]
        return MissingError(
            "no installed expert can be attached",
            expected=f"an expert for backbone {backbone.id!r}",
            found=f"{failed[0].expert}: {violation.reason}",
            hint=violation.hint,
        )
    return MissingError(
        "no experts are installed",
        expected=f"a package with an expert for backbone {backbone.id!r}",
        hint="For example: pip install red-expert-range3",
    )
