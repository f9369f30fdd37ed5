"""Several questions: each composition answers a text, and texts are encoded once for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ...registry.errors import RedhostError, UsageError
from ..label_sets import NONE
from ..types import as_list
from .composed import Answer, ComposedModel, Observe, shared_features


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """The generations that answer the questions of one home.

    Attributes:
        default: The generation of the default question; None if only named ones are composed.
        named: Those of the named questions. One that predicts next tokens answers no texts.
        damaged: Why a composed question cannot be answered, by name; the key None is the default
            question.
    """

    default: ComposedModel | None
    named: Mapping[str, ComposedModel]
    damaged: Mapping[str | None, RedhostError] = field(default_factory=dict)

    @property
    def generations(self) -> dict[str, int | None]:
        """The generation of each named question, by name."""
        return {name: model.generation for name, model in self.named.items()}

    @property
    def _answering(self) -> dict[str | None, ComposedModel]:
        """The generations that answer texts, by name, the default question first."""
        named: dict[str | None, ComposedModel] = {
            n: m for n, m in self.named.items() if not m.backbone.task.unit.generates
        }
        return named if self.default is None else {None: self.default, **named}

    def levels(self, sets: float | None = None) -> dict[str | None, float | None]:
        """Return the level of each question's label sets; None for a question without label sets.

        Args:
            sets: As for `answer`.

        Raises:
            UsageError: If texts cannot be answered, or no question supports label sets.
        """
        levels, refused = dict[str | None, float | None](), list[UsageError]()
        for name, model in self._answering.items():
            model.check_answers()
            levels[name] = sets
            try:
                model.check_answers(sets=sets)
            except UsageError as e:
                levels[name] = None
                refused.append(e)
        if refused and len(refused) == len(levels):
            raise refused[0]
        return levels

    def answer(
        self,
        texts: str | Iterable[str],
        *,
        sets: float | None = None,
        each: bool = False,
        observe: Mapping[str | None, Observe | None] = MappingProxyType({}),
    ) -> list[Answer]:
        """Answer texts for each question; answers are bitwise identical to those of it alone.

        The answers to the named questions are in `questions` of the default question's answer. If
        the default question is not composed, its answer is declined, without weights and
        generation.

        Args:
            texts: A text, or any iterable of texts.
            sets: As for `ComposedModel.answer`; applied to questions that support label sets.
            each: Whether every expert also answers on its own.
            observe: By question, None for the default one: as for `ComposedModel.answer`.

        Raises:
            InputTypeError: If the texts are of another type.
            UsageError: If no question supports label sets.
        """
        texts = as_list(texts, str, "text")
        answering, levels = self._answering, self.levels(sets)
        h = shared_features([*answering.values()], texts)
        answers = [
            model.answer(
                texts, sets=levels[name], each=each, features=features, observe=observe.get(name)
            )
            for (name, model), features in zip(answering.items(), h, strict=True)
        ]
        unasked = Answer(
            input="", label=NONE, probability=None, weights={}, generation=None, declined=True
        )
        default = (
            answers.pop(0) if self.default else [replace(unasked, input=str(t)) for t in texts]
        )
        named = [name for name in answering if name is not None]
        if not named:
            return default
        return [
            replace(answer, questions=dict(zip(named, others, strict=True)))
            for answer, *others in zip(default, *answers, strict=True)
        ]
