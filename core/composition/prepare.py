"""Load: the backbone is opened, and every expert that may join is built and checked.

An expert that fails is left out with its reason; a member of the current composition is never lost
in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from ...registry.environment.extras import how_to_get_expert
from ...registry.environment.status import PackageStatus
from ...registry.errors import HarmError, MissingError
from ...registry.home.composition import Composition, Member
from ...registry.package.checked import Checked, Violation
from ...registry.package.discover import Package
from ...registry.package.manifest import BackboneManifest
from ...registry.package.readers import BackboneFiles, ExpertFiles
from ..backbones.backbone import Backbone
from ..backbones.feature_cache import cached_encode
from ..backbones.interventions.layout import with_layout
from ..bus.bus import BusConfig
from ..model.build import (
    BuiltExperts,
    LoadedExpert,
    Providers,
    backbone_makers,
    built_experts,
    make_backbone,
    make_expert,
    rows_of,
)
from ..model.composed import ComposedModel
from ..model.verify import CachedBusEncoder, check_live
from ..plugins.manager import Plugins
from ..receipt import LeftOut
from ..session import Prefetcher
from ..types import BackgroundRow, Encode, Progress, Row
from .refusal import Code, Refusal, is_about_material, refusal_of
from .select import Selection


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateSet:
    """The outcome of the checks.

    Attributes:
        experts: The experts that passed every check, by id in sorted order.
        statuses: Their installed packages, by id.
        rejected: Why installed packages did not pass.
        withdrawn: Members of the previous composition that are gone, disabled or revoked.
    """

    experts: Mapping[str, LoadedExpert]
    statuses: Mapping[str, PackageStatus]
    rejected: tuple[Refusal, ...]
    withdrawn: tuple[str, ...]

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The receipt's lines on what was rejected."""
        lines = (
            LeftOut(id=str(r.expert), code=v.code, reason=v.reason)
            for r in self.rejected
            for v in r.violations[:1]
        )
        return tuple(sorted(lines, key=lambda line: (line.id, line.code)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Previous:
    """The current generation, which a composition is compared with; without parts if none is.

    Attributes:
        record: Its record.
        model: Itself, loaded; None if it cannot be.
        fallen: What each domain has lost up to it, see `Accuracy`.
    """

    record: Composition | None = None
    model: ComposedModel | None = None
    fallen: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecomposeInputs:
    """All that is read, checked and built before the router is made.

    Attributes:
        package: The backbone's package.
        files: Its bytes.
        backbone: The frozen backbone, already verified.
        background: Its background card.
        evaluation: Its held-out rows, passed on to the composition.
        candidates: The experts that passed.
        plugins: The plugins that make the parts.
        providers: The plugins that have made a part so far.
        encode: Texts → h of this backbone, through the cache.
        previous: The current generation.
        encode_previous: Texts → h of the current composition's backbone.
    """

    package: Package
    files: BackboneFiles
    backbone: Backbone
    background: tuple[BackgroundRow, ...]
    evaluation: tuple[Row, ...]
    candidates: CandidateSet
    plugins: Plugins
    providers: Providers
    encode: Encode
    previous: Previous
    encode_previous: Encode | None = None


def load_parts(
    selection: Selection,
    *,
    plugins: Plugins,
    cache: Path | None,
    device: str,
    previous: Previous | None = None,
    progress: Progress | None = None,
    pool: Prefetcher | None = None,
) -> RecomposeInputs:
    """Build the backbone and every expert that passes.

    Args:
        selection: The backbone, and the experts with their static checks.
        plugins: The plugins that make the parts.
        cache: The folder of the feature cache.
        device: The device of the trunk.
        previous: The current generation, if there is one.
        progress: Called with (texts encoded, texts to encode).
        pool: Encodes the cards' texts in advance.
    """
    previous, files, providers = previous or Previous(), selection.files, Providers()
    by_plugin = bool(backbone_makers(files.manifest, plugins=plugins, device=device))
    verified = None if by_plugin else _verified_before(files, previous, device=device)
    backbone = verified or make_backbone(files, plugins=plugins, providers=providers, device=device)
    encode = cached_encode(backbone, files.manifest.fingerprint, cache, progress)
    background, read = rows_of(files, BackgroundRow), CachedBusEncoder(backbone, encode=encode)
    candidates = load_candidates(
        selection,
        previous=previous.record,
        bus=backbone.bus_config(),
        plugins=plugins,
        providers=providers,
        verify=partial(check_live, backbone=backbone, background=background, read=read),
        built=built_experts(previous.model),
    )
    if pool is not None and not by_plugin:
        texts = [r.text for e in candidates.experts.values() for r in e.card.rows]
        pool.encode(texts, backbone=backbone, files=files, folder=cache, progress=progress)
    # h̃ is known only now: an expert may read inside the backbone.
    wide = with_layout(backbone, {i: e.expert for i, e in candidates.experts.items()})
    if wide is not backbone:
        encode = cached_encode(wide, files.manifest.fingerprint, cache, progress)
    return RecomposeInputs(
        package=selection.package,
        files=files,
        backbone=wide,
        background=background,
        evaluation=rows_of(files, Row),
        candidates=candidates,
        plugins=plugins,
        providers=providers,
        encode=encode,
        previous=previous,
        encode_previous=None
        if previous.model is None
        else cached_encode(previous.model.backbone, previous.model.fingerprint, cache, progress),
    )


def _verified_before(files: BackboneFiles, previous: Previous, *, device: str) -> Backbone | None:
    """Return the current generation's backbone, if it has these bytes and is on no other engine."""
    record = previous.record
    if record is None or previous.model is None or record.backbone.digest != files.digest:
        return None
    # Another engine gives other bits: what was verified on one says nothing of the other.
    if record.settings.get("device") not in {None, device}:
        return None
    return replace(previous.model.backbone, layout=None)


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
    failed = [
        (x, replace(r, expert=x.id or x.package.dist))
        for x, r in outcomes
        if isinstance(r, Refusal)
    ]
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
        violation = verify(loaded.value) if loaded.value else loaded.violations[0]
    except Exception as e:  # an expert's material can make any call here fail
        if not is_about_material(e):
            raise
        return refusal_of(e)
    if loaded.value and violation is None:
        return loaded.value
    broken = (violation,) if violation else loaded.violations
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
    manifest = status.manifest
    if manifest is None or manifest.card.sha256 is None:
        return None
    for other in (x.manifest for x in others if x.id != status.id and not x.violations):
        # Labels too: two teams may label one set of texts for different purposes.
        if (
            other
            and other.card.sha256 == manifest.card.sha256
            and {*other.labels} == {*manifest.labels}
        ):
            rows = manifest.card.fit + manifest.card.gate
            copied = f"the {rows} rows of expert {other.id!r}, with the same labels"
            copied += f" ({because})" if because else ""
            violation = Violation(
                "same_rows",
                "card",
                "rows of its own",
                copied,
                "Remove one of the two with 'redhost remove ID', or give the new one rows of its "
                "own.",
            )
            return Refusal(code=Code.SAME_ROWS, violations=(violation,))
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
    matching = (m for m in members.values() if status.id == m.id or status.package.dist == m.dist)
    lost = next((m for m in matching if m.id not in experts), None)
    # Disabled or revoked by name; anything else would take a member away unasked.
    if lost is not None and violation.code not in {"disabled", "revoked"}:
        hint = violation.hint
        if violation.code == "backbone_mismatch":  # the installed build may be a ported one
            hint = (
                f"Install what was composed again: 'redhost add WHEEL' of {lost.dist} "
                f"{lost.version}; or go on with the backbone of the installed build: "
                "'redhost rollback N' to a generation on it, as 'redhost history' lists them."
            )
        raise HarmError(
            f"expert {lost.id!r} is in the current composition and now fails ({violation.code})",
            found=violation.reason,
            hint=f"{hint} To go on without it: 'redhost disable {status.id or lost.dist}'.",
        )


def _nothing(failed: Sequence[Refusal], backbone: BackboneManifest) -> MissingError:
    if failed:
        # What the user disabled says most of why there is none, and what is made for another
        # backbone least.
        order = {"disabled": 0, "backbone_mismatch": 2}
        first = min((r.violations[0] for r in failed), key=lambda v: order.get(v.code, 1))
        alike = (str(r.expert) for r in failed if r.violations[0].code == first.code)
        return MissingError(
            "no installed expert can be attached",
            expected=f"an expert for backbone {backbone.id!r}",
            found=f"{', '.join(alike)}: {first.reason}",
            hint=first.hint,
        )
    return MissingError(
        "no experts are installed",
        expected=f"a package with an expert for backbone {backbone.id!r}",
        hint=f"For example: {how_to_get_expert(backbone.id)}",
    )
