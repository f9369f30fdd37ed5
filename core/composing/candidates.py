"""Who joins the next composition: what is installed, checked afresh, with reasons for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...registry.composition import Composition
from ...registry.errors import CardError, HarmError, MissingError, PluginError, short
from ...registry.files import ExpertFiles, read_expert
from ...registry.manifest import BackboneManifest
from ...registry.states import Listing
from ...registry.violations import Violation
from ..bus import BusConfig
from ..extending.assemble import Attached, Providers, make_expert
from ..extending.plugins import Plugins
from ..receipt import LeftOut

__all__ = ["Candidates", "gather"]

Verify = Callable[[Attached], Violation | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The outcome of the checks.

    Attributes:
        attached: Experts that passed everything, by id in sorted order.
        listings: Their installed packages, by id.
        left_out: Installed packages that did not pass, with their reasons.
        withdrawn: Members of the previous composition that are gone or disabled.
    """

    attached: Mapping[str, Attached]
    listings: Mapping[str, Listing]
    left_out: tuple[LeftOut, ...]
    withdrawn: tuple[str, ...]


def gather(
    listings: tuple[Listing, ...],
    *,
    previous: Composition | None,
    backbone: BackboneManifest,
    bus: BusConfig,
    plugins: Plugins,
    providers: Providers,
    verify: Verify,
) -> Candidates:
    """Read, check and build every installed expert.

    Args:
        listings: What is installed, as far as static checks go.
        previous: The current composition; its members may not fail silently.
        backbone: The backbone they must fit.
        bus: The bus they join.
        plugins: Who makes the parts.
        providers: Filled with the plugins that made one.
        verify: The last check of one that is built, e.g. of what it does off its domain.

    Raises:
        HarmError: If a member of the previous composition now fails its contract or canary.
        MissingError: If no expert passes.
    """
    attached: dict[str, Attached] = {}
    failed: list[tuple[Listing, Violation]] = []
    for listing in listings:
        made = _try(listing, bus=bus, plugins=plugins, providers=providers)
        if isinstance(made, Attached):
            made = verify(made) or made
        if isinstance(made, Attached):
            attached[made.files.manifest.id] = made
        else:
            failed.append((listing, made))
    members = {m.id: m.dist for m in previous.experts} if previous else {}
    for listing, violation in failed:
        _refuse_failing(members, attached, listing, violation)
    if not attached:
        raise _nothing(failed, backbone)
    left_out = [LeftOut(id=_name(x), code=v.code, reason=v.reason) for x, v in failed]
    return Candidates(
        attached={i: attached[i] for i in sorted(attached)},
        listings={x.id: x for x in listings if x.id in attached and x.code is None},
        left_out=tuple(sorted(left_out, key=lambda x: (x.id, x.code))),
        withdrawn=tuple(sorted(members.keys() - attached.keys())),
    )


def _try(
    listing: Listing, *, bus: BusConfig, plugins: Plugins, providers: Providers
) -> Attached | Violation:
    """Attach one package from bytes read now, or say what is wrong."""
    if listing.violations:
        return listing.violations[0]
    files = listing.files or read_expert(listing.package)
    if not isinstance(files, ExpertFiles):
        return files[0]
    if files.digest != listing.digest:
        hint = "Try again when nobody installs anything."
        told, found = short(listing.digest or ""), short(files.digest)
        return Violation("weights_digest", "package", f"{told}, as audited", found, hint)
    try:
        return make_expert(files, bus=bus, plugins=plugins, providers=providers)
    except (CardError, PluginError) as e:
        code = "card_rows" if isinstance(e, CardError) else "form_unknown"
        return Violation(code, "package", e.expected or "a part that can be made", str(e), e.hint)


def _refuse_failing(
    members: Mapping[str, str],
    attached: Mapping[str, Attached],
    listing: Listing,
    violation: Violation,
) -> None:
    """Refuse to lose a member that is installed but broken (law 3).

    A manifest that cannot be read has no id any more: then the distribution tells who it was.
    """
    dist = listing.package.dist
    lost = [i for i, d in members.items() if i not in attached and (listing.id == i or dist == d)]
    if lost and violation.code != "disabled":
        raise HarmError(
            f"expert {lost[0]!r} is in the current composition and now fails ({violation.code})",
            found=violation.reason,
            hint=f"{violation.hint} To go on without it: 'redhost disable {_name(listing)}'.",
        )


def _name(listing: Listing) -> str:
    return listing.id or listing.package.dist


def _nothing(failed: list[tuple[Listing, Violation]], backbone: BackboneManifest) -> MissingError:
    if failed:
        listing, violation = failed[0]
        return MissingError(
            "no installed expert can be attached",
            expected=f"an expert for backbone {backbone.id!r}",
            found=f"{_name(listing)}: {violation.reason}",
            hint=violation.hint,
        )
    return MissingError(
        "no experts are installed",
        expected=f"a package with an expert for backbone {backbone.id!r}",
        hint="For example: pip install red-expert-range3",
    )
