"""A host with the interface of a transformers pipeline: called with texts, returns dictionaries.

Code that accepts ``transformers.pipeline(...)`` also accepts `pipeline`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from .core.host import Host
from .core.label_sets import NONE
from .core.types import as_list
from .registry.errors import UsageError

__all__ = ["pipeline"]


class Pipeline(Protocol):
    """A host that is called as a pipeline of transformers is.

    Attributes:
        task: What transformers calls its task.
    """

    task: str

    def __call__(self, *inputs: Any, **options: Any) -> list[Any]:
        """Return what the pipeline of transformers returns for these texts."""
        ...


def pipeline(
    task: str | None = None, *, home: str | Path | None = None, device: str | None = None
) -> Pipeline:
    """Return the current generation of a home as a pipeline.

    Args:
        task: ``text-classification``, or with redhost-spans ``token-classification``, with
            redhost-generate ``text-generation``; None takes the backbone's task.
        home: The state folder; by default ``REDHOST_HOME`` or ``.redhost``.
        device: The device of the trunk, e.g. ``cuda``.

    Returns:
        What answers one text or several, as the pipeline of that task does; for labels with
        dictionaries of ``label`` and ``score``, and ``top_k`` of them.

    Raises:
        MissingError: If nothing has been composed in this home.
        UsageError: If the backbone has another task.
    """
    host = Host.open(home, device=device)
    unit = host.composed.backbone.task.unit
    pipeline_class = unit.pipeline or TextClassification
    if task not in (None, pipeline_class.task):
        raise UsageError(f"no {task!r} of {host!r}", expected=pipeline_class.task, found=str(task))
    return pipeline_class(host)


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
        if head.scorer is None:
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
            answers = self.host.composed.answer(texts)
            return [{"label": a.label, "score": a.probability} for a in answers]
        model = self.host.composed
        rows = model.probabilities(texts).sort(dim=-1, descending=True, stable=True)
        scores, places = rows.values[:, :top_k].tolist(), rows.indices[:, :top_k].tolist()
        several = [
            [
                {"label": model.bus.labels[n] or NONE, "score": s}
                for n, s in zip(at, row, strict=True)
            ]
            for at, row in zip(places, scores, strict=True)
        ]
        return several[0] if one else several
