"""Options of a composition, and the inputs that a router is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypedDict

from ...registry.home.composition import Composition
from ...registry.package.discover import Package
from ...registry.package.readers import BackboneFiles
from ..backbones.backbone import Backbone
from ..model.build import Providers
from ..model.composed import ComposedModel
from ..plugins.manager import Plugins
from ..training.router import RouterSettings
from ..types import BackgroundRow, Encode, Progress, Row
from .candidates import CandidateSet

Level = Literal["full", "row", "zero"]


class RecomposeKeywords(TypedDict, total=False):
    """The keywords of `Host.recompose`, `attach`, `detach` and `replace`.

    All but two are those of `RecomposeOptions`. ``progress`` is called with (steps done, total
    steps). With ``try_others``, a newcomer that is refused for harm is tried with other routers, to
    report which of them would accept it. Values left out or None are taken from the current
    generation (if only one expert changes), then from the settings. The level is ``full`` unless
    given; it is not taken over from the generation.
    """

    router: str | None
    level: Level | None
    seed: int | None
    tolerance: float | None
    accept: bool
    decline: float | None
    prior: str | None
    try_others: bool | None
    progress: Progress | None


@dataclass(frozen=True, kw_only=True)
class RecomposeOptions:
    """How a composition is made.

    Attributes:
        router: The router's kind.
        level: How much of it to retrain.
        seed: The random seed.
        tolerance: Points a domain may lose before the composition is refused; None is one
            point or two gate rows, whichever is larger.
        accept: Whether to publish a composition that would be refused.
        decline: ε, 0–1: at most this share of the experts' own texts is declined. None or 0
            declines only the texts that the router leaves to a backbone without answers.
        prior: The expected shares of the columns, as `read_prior` returns them; None means the
            shares that the router learnt under.
        backbone_column: Whether the router has a column that changes nothing, if the backbone
            ships a background card to learn it from.
        settings: How routers without a closed form are trained.
    """

    router: str
    level: Level = "full"
    seed: int = 0
    tolerance: float | None = None
    accept: bool = False
    decline: float | None = None
    prior: str | None = None
    backbone_column: bool = True
    settings: RouterSettings = field(default_factory=RouterSettings)

    def over(self, *sources: Mapping[str, Any]) -> Self:
        """Return these options, each overridden by the first source with a value other than None.

        Args:
            sources: Values by name, e.g. `RecomposeKeywords`; unknown names are ignored.
        """
        given = {k: v for s in reversed(sources) for k, v in s.items() if v is not None}
        return type(self)(
            **{f.name: given.get(f.name, getattr(self, f.name)) for f in fields(self)}
        )


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
