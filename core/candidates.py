"""Who joins the next composition: what is installed, checked afresh, with reasons for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..registry.composition import Composition
from ..registry.errors import CardError, HarmError, MissingError, PluginError
from ..registry.files import ExpertFiles, read_expert
from ..registry.manifest import BackboneManifest
from ..registry.states import Listing
from ..registry.violations import Violation
from .assemble import Attached, Providers, make_expert
from .bus import BusConfig
from .plugins import Plugins
from .receipt import LeftOut

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
    left_out: list[LeftOut] = []
    hints: dict[str, str] = {}
    for listing in listings:
        made = _try(listing, bus=bus, plugins=plugins, providers=providers)
        if isinstance(made, Attached):
            made = verify(made) or made
        if isinstance(made, Attached):
            attached[made.files.manifest.id] = made
        else:
            name = listing.id or listing.package.dist
            left_out.append(LeftOut(id=name, code=made.code, reason=made.reason))
            hints[name] = made.hint
    before = {m.id for m in previous.experts} if previous else set()
    disabled = {x.id for x in left_out if x.code == "disabled"}
    _refuse_failing(before - disabled, [x for x in left_out if x.id not in attached], hints)
    if not attached:
        raise _nothing(left_out, hints, backbone)
    return Candidates(
        attached={i: attached[i] for i in sorted(attached)},
        listings={x.id: x for x in listings if x.id in attached and x.code is None},
        left_out=tuple(sorted(left_out, key=lambda x: (x.id, x.code))),
        withdrawn=tuple(sorted(before - attached.keys())),
    )


def _try(
    listing: Listing, *, bus: BusConfig, plugins: Plugins, providers: Providers
) -> Attached | Violation:
    """Attach one package from bytes read now, or say what is wrong."""
    if listing.code is not None:
        return Violation(
            listing.code,
            "package",
            "an expert that passes every check",
            listing.reason or listing.code,
            listing.hint or "",
        )
    files = read_expert(listing.package)
    if not isinstance(files, ExpertFiles):
        return files[0]
    try:
        return make_expert(files, bus=bus, plugins=plugins, providers=providers)
    except (CardError, PluginError) as e:
        code = "card_rows" if isinstance(e, CardError) else "form_unknown"
        return Violation(code, "package", e.expected or "a part that can be made", str(e), e.hint)


def _refuse_failing(before: set[str], left_out: list[LeftOut], hints: Mapping[str, str]) -> None:
    """Refuse to lose a member that is installed but broken (law 3)."""
    for x in left_out:
        if x.id in before:
            raise HarmError(
                f"expert {x.id!r} is in the current composition and now fails ({x.code})",
                found=x.reason,
                hint=f"{hints[x.id]} To go on without it: 'redhost disable {x.id}'.",
            )


def _nothing(
    left_out: list[LeftOut], hints: Mapping[str, str], backbone: BackboneManifest
) -> MissingError:
    if left_out:
        first = left_out[0]
        return MissingError(
            "no installed expert can be attached",
            expected=f"an expert for backbone {backbone.id!r}",
            found=f"{first.id}: {first.reason}",
            hint=hints[first.id],
        )
    return MissingError(
        "no experts are installed",
        expected=f"a package with an expert for backbone {backbone.id!r}",
        hint="For example: pip install red-expert-range3",
    )
