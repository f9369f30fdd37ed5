"""Options of a composition, and the keywords that give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, Self, TypedDict

import msgspec

from ...registry.errors import UsageError, suggest
from ..training.router import RouterSettings
from ..types import Progress

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
    decline: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None
    prior: str | None
    try_others: bool | None
    progress: Progress | None


def checked_keywords(keywords: RecomposeKeywords) -> RecomposeKeywords:
    """Return keywords of Python callers, who may not have checked names and types.

    Raises:
        UsageError: If there is no such keyword, or its value is of another type.
    """
    names = sorted(RecomposeKeywords.__annotations__)
    for name in keywords.keys() - names:
        raise UsageError(
            "how to compose",
            expected=", ".join(names),
            found=repr(name),
            hint=suggest(name, names).rstrip(),
        )
    try:
        return msgspec.convert(keywords, RecomposeKeywords)
    except msgspec.ValidationError as e:
        reason, _, place = str(e).partition(" - at `$.")
        raise UsageError(f"keyword {place.rstrip('`')!r}: {reason}") from e


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
