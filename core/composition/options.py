"""How to compose, and everything that a router is made from."""

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

    All but two are those of `RecomposeOptions`: ``progress`` is called with (steps done, steps in
    all), and with ``try_others`` a newcomer that is refused for its harm is tried with other
    routers, to say which of them would let it in. What is left out or None is taken from the
    current generation, where only one expert changes, then from the settings. The level is ``full``
    unless it is given: what joined by ``row`` did not move others.
    """

    router: str | None
    level: Level | None
    seed: int | None
    tolerance: float | None
    accept: bool
    decline: float | None
    prior: str | None
    ranks: Mapping[str, int] | None
    try_others: bool | None
    progress: Progress | None


@dataclass(frozen=True, kw_only=True)
class RecomposeOptions:
    """How a composition is made.

    Attributes:
        router: The router's kind.
        level: How much of it to retrain.
        seed: Where randomness comes from.
        tolerance: Points a domain may lose before the composition is refused; None is one
            point or two gate rows, whichever is larger.
        accept: Whether to publish even so.
        decline: ε: at most so many of the experts' own texts are declined, 0–1; None or 0 declines
            none but those that the router leaves to a backbone without answers.
        prior: Whose texts are expected, as `read_prior` returns it; None are the shares that the
            router learnt under.
        ranks: Which of its ranks an expert is served at, by id; who is not here keeps the one it
            has.
        backbone_column: Whether the router may choose to change nothing, where the backbone
            ships a background card to learn that from.
        settings: How routers without a closed form are trained.
    """

    router: str
    level: Level = "full"
    seed: int = 0
    tolerance: float | None = None
    accept: bool = False
    decline: float | None = None
    prior: str | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    backbone_column: bool = True
    settings: RouterSettings = field(default_factory=RouterSettings)

    def over(self, *sources: Mapping[str, Any]) -> Self:
        """Return what sources give over these options: the first that has no None for one.

        Args:
            sources: Values by name, e.g. `RecomposeKeywords`; other names are passed over.
        """
        given = {k: v for s in reversed(sources) for k, v in s.items() if v is not None}
        return type(self)(
            **{f.name: given.get(f.name, getattr(self, f.name)) for f in fields(self)}
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RecomposeInputs:
    """Everything that is read, checked and built before the router is made.

    Attributes:
        package: The backbone's package.
        files: Its bytes.
        backbone: The frozen backbone, already verified.
        background: Its background card.
        evaluation: Its held-out rows, carried along into the composition.
        candidates: The experts that passed.
        plugins: Who makes the parts.
        providers: Which plugins made one so far.
        encode: Texts → h of this backbone, through the cache.
        record: The current generation's record, if there is one.
        previous: The current composition, if there is one.
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
    record: Composition | None = None
    previous: ComposedModel | None = None
    encode_previous: Encode | None = None
