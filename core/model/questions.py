"""Questions side by side: each composition answers a text, and texts are encoded once for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ...registry.errors import RedhostError, UsageError
from ..bus.tasks import Unit
from ..label_sets import NONE
from ..types import as_list
from .composed import Answer, ComposedModel, Observe, shared_features


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """The generations that answer the questions of one home.

    Attributes:
        own: That of the home's own question; None where only named ones are composed.
        named: Those of the named questions. One that tells next tokens answers no text.
        damaged: Why a question that is composed cannot be answered, by name; None is the home's
            own.
    """

    own: ComposedModel | None
    named: Mapping[str, ComposedModel]
    damaged: Mapping[str | None, RedhostError] = field(default_factory=dict)

    @property
    def generations(self) -> dict[str, int | None]:
        """The generation of each named question, by name."""
        return {name: model.generation for name, model in self.named.items()}

    @property
    def _answering(self) -> dict[str | None, ComposedModel]:
        """Whoever answers texts, the home's own first, by name."""
        named: dict[str | None, ComposedModel] = {
            n: m for n, m in self.named.items() if m.backbone.task.unit is not Unit.TOKEN
        }
        return named if self.own is None else {None: self.own, **named}

    def levels(self, sets: float | None = None) -> dict[str | None, float | None]:
        """Return the level of each question's label sets; None for one that can have none.

        Args:
            sets: As for `answer`.

        Raises:
            UsageError: If texts cannot be answered, or no question can have label sets.
        """
        found, refused = dict[str | None, float | None](), list[UsageError]()
        for name, model in self._answering.items():
            model.check_answers()
            found[name] = sets
            try:
                model.check_answers(sets=sets)
            except UsageError as e:
                found[name] = None
                refused.append(e)
        if refused and len(refused) == len(found):
            raise refused[0]
        return found

    def answer(
        self,
        texts: str | Iterable[str],
        *,
        sets: float | None = None,
        each: bool = False,
        observe: Mapping[str | None, Observe | None] = MappingProxyType({}),
    ) -> list[Answer]:
        """Answer texts, each question by its own generation: bit for bit what it answers alone.

        The home's own answer has the others in `questions`. Where its own is not composed, that
        answer is declined, with no weights and no generation.

        Args:
            texts: A text, or any iterable of texts.
            sets: As for `ComposedModel.answer`, like the rest; for those that can have label sets.
            each: Whether every expert is to answer for itself as well.
            observe: By question, None for the home's own: as for `ComposedModel.answer`.

        Raises:
            InputTypeError: If it is anything else.
            UsageError: If no question can have label sets.
        """
        texts = as_list(texts, str, "text")
        answering, levels = self._answering, self.levels(sets)
        h = shared_features([*answering.values()], texts)
        found = [
            model.answer(
                texts, sets=levels[name], each=each, features=features, observe=observe.get(name)
            )
            for (name, model), features in zip(answering.items(), h, strict=True)
        ]
        own = found.pop(0) if self.own else [_unasked(text) for text in texts]
        named = [name for name in answering if name is not None]
        if not named:
            return own
        return [
            replace(answer, questions=dict(zip(named, beside, strict=True)))
            for answer, *beside in zip(own, *found, strict=True)
        ]


def _unasked(text: str) -> Answer:
    """Return the answer to a text where the home's own question is not composed."""
    return Answer(
        input=str(text), label=NONE, probability=None, weights={}, generation=None, declined=True
    )
