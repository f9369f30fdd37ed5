"""A host with the interface of a transformers pipeline: called with texts, returns dictionaries.

Code that accepts ``transformers.pipeline(...)`` also accepts `pipeline`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .core.bus.tasks import Unit
from .core.host import Host
from .core.model.decode import generate
from .core.types import as_list
from .registry.errors import UsageError

__all__ = ["TextClassification", "TextGeneration", "TokenClassification", "pipeline"]


def pipeline(
    task: str | None = None, *, home: str | Path | None = None, device: str | None = None
) -> "TextClassification | TextGeneration | TokenClassification":
    """Return the current generation of a home as a pipeline.

    Args:
        task: ``text-classification``, ``token-classification`` or ``text-generation``; None takes
            the backbone's task.
        home: The state folder; by default ``REDHOST_HOME`` or ``.redhost``.
        device: The device of the trunk, e.g. ``cuda``.

    Raises:
        MissingError: If nothing has been composed in this home.
        UsageError: If the backbone has another task.
    """
    host = Host.open(home, device=device)
    made = PIPELINES[host.composed.backbone.task.unit]
    if task not in (None, made.task):
        raise UsageError(f"no {task!r} of {host!r}", expected=made.task, found=str(task))
    return made(host)


class TextClassification:
    """Texts → labels with scores.

    Args:
        host: The host whose current generation answers.

    Raises:
        UsageError: If its backbone does not answer labels.
    """

    task = "text-classification"

    def __init__(self, host: Host) -> None:
        self.host = host
        head = host.composed.bus.task.head
        if not (head.distribution or head.several) or head.vocabulary:
            raise UsageError(
                "no such pipeline", expected="a backbone that answers labels", found=head.noun
            )

    def __call__(self, inputs: str | Iterable[str], *, top_k: int | None = 1) -> list[Any]:
        """Return the most probable labels of texts.

        Args:
            inputs: One text, or any iterable of texts.
            top_k: How many labels; None for all of them.

        Returns:
            With ``top_k=1``, a dictionary per text with ``label`` and ``score``. Otherwise a list
            of such dictionaries per text; for a single text, that list alone. The first label of a
            declined text is ``none``. If a text has any number of labels, ``top_k=1`` returns the
            set, ``a|b``.

        Raises:
            InputTypeError: If there are no texts.
            UsageError: If ``top_k`` is less than 1.
        """
        one, texts = isinstance(inputs, str), as_list(inputs, str, "text")
        if top_k is not None and top_k < 1:
            raise UsageError("top_k", expected="1 or more, or None", found=str(top_k))
        if top_k == 1:
            found = self.host.composed.answer(texts)
            return [{"label": a.label, "score": a.probability} for a in found]
        model = self.host.composed
        rows = model.probabilities(texts).sort(dim=-1, descending=True, stable=True)
        scores, places = rows.values[:, :top_k].tolist(), rows.indices[:, :top_k].tolist()
        several = [
            [{"label": model.bus.labels[n], "score": s} for n, s in zip(at, row, strict=True)]
            for at, row in zip(places, scores, strict=True)
        ]
        return several[0] if one else several


class TokenClassification:
    """Texts → labelled spans of words, as transformers returns them (``aggregation_strategy``).

    Args:
        host: The host whose current generation answers.

    Raises:
        UsageError: If its backbone does not answer spans.
    """

    task = "token-classification"

    def __init__(self, host: Host) -> None:
        self.host = host
        if host.composed.backbone.task.unit is not Unit.WORD:
            found = host.composed.bus.task.head.noun
            raise UsageError("no such pipeline", expected="a backbone of spans", found=found)

    def __call__(self, inputs: str | Iterable[str]) -> list[Any]:
        """Return the spans of texts.

        Args:
            inputs: One text, or any iterable of texts.

        Returns:
            A list with a dictionary per span, with ``entity_group``, ``score``, ``word``, ``start``
            and ``end``; for several texts, a list of such lists.
        """
        one, texts = isinstance(inputs, str), as_list(inputs, str, "text")
        found = [
            [
                {
                    "entity_group": s.label,
                    "score": s.probability,
                    "word": s.text,
                    "start": s.start,
                    "end": s.end,
                }
                for s in answer.spans or ()
            ]
            for answer in self.host.composed.answer(texts)
        ]
        return found[0] if one else found


class TextGeneration:
    """Prompts → generated texts.

    Args:
        host: The host whose current generation generates.
    """

    task = "text-generation"

    def __init__(self, host: Host) -> None:
        self.host = host

    def __call__(
        self,
        text_inputs: str | Iterable[str],
        *,
        max_new_tokens: int = 100,
        do_sample: bool = True,
        temperature: float = 1.0,
        seed: int = 0,
        return_full_text: bool = True,
    ) -> list[Any]:
        """Return the continuations of prompts.

        Args:
            text_inputs: One prompt, or any iterable of prompts.
            max_new_tokens: How many tokens at most.
            do_sample: Whether tokens are sampled; otherwise the most probable one is taken.
            temperature: The temperature of sampling.
            seed: The seed of sampling.
            return_full_text: Whether the prompt precedes its continuation.

        Returns:
            A list with one dictionary, with ``generated_text``; for several prompts, a list of
            those.
        """
        one, prompts = isinstance(text_inputs, str), as_list(text_inputs, str, "text")
        t, model = temperature if do_sample else 0.0, self.host.composed
        made = []
        for prompt in prompts:
            tokens = generate(model, prompt, max_tokens=max_new_tokens, temperature=t, seed=seed)
            text = "".join(token.text for token in tokens)
            made.append([{"generated_text": prompt + text if return_full_text else text}])
        return made[0] if one else made


PIPELINES: dict[Unit, type[TextClassification | TextGeneration | TokenClassification]] = {
    Unit.TEXT: TextClassification,
    Unit.WORD: TokenClassification,
    Unit.TOKEN: TextGeneration,
}
"""The pipeline of each unit of a bus row."""
