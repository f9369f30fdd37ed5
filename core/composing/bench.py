"""What lies on the table before a router is made: the order, and everything it is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..answering.composed import Composed
from ..backbones.backbone import Backbone
from ..encode import Encode
from ..extending.assemble import Providers
from ..extending.plugins import Plugins
from ..learning.train_router import RouterSettings
from ..rows import BackgroundRow, Row
from .candidates import Candidates

__all__ = ["Bench", "Level", "Order"]

Level = Literal["full", "row", "zero"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the user asked for.

    Attributes:
        router: The router's kind.
        level: How much of it to retrain.
        seed: Where randomness comes from.
        tolerance: Points a domain may lose before the composition is refused; None is one
            point or two gate rows, whichever is larger.
        accept: Whether to publish even so.
        backbone_column: Whether the router may choose to change nothing, where the backbone
            ships a background card to learn that from.
        settings: How routers without a closed form are trained.
    """

    router: str
    level: Level = "full"
    seed: int = 0
    tolerance: float | None = None
    accept: bool = False
    backbone_column: bool = True
    settings: RouterSettings = field(default_factory=RouterSettings)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """Everything on the table before the router is made.

    Attributes:
        backbone: The frozen backbone, already verified.
        fingerprint: Its fingerprint.
        background: Its background card.
        evaluation: Its held-out rows, carried along into the composition.
        candidates: The experts that passed.
        plugins: Who makes the parts.
        providers: Which plugins made one so far.
        encode: Texts → h of this backbone, through the cache.
        previous: The current composition, if there is one.
        encode_previous: Texts → h of the current composition's backbone.
        unchanged: Members of `previous` whose bytes are the same.
    """

    backbone: Backbone
    fingerprint: str
    background: tuple[BackgroundRow, ...]
    evaluation: tuple[Row, ...]
    candidates: Candidates
    plugins: Plugins
    providers: Providers
    encode: Encode
    previous: Composed | None = None
    encode_previous: Encode | None = None
    unchanged: frozenset[str] = frozenset()
