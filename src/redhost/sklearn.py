"""A host as a scikit-learn classifier, for its pipelines, metrics and model selection.

Needs scikit-learn: ``pip install 'redhost[sklearn]'``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from .core.host import Host
from .core.types import as_list
from .registry.errors import MissingError, UsageError, suggest

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # pyright: ignore
    from sklearn.utils.validation import check_is_fitted  # pyright: ignore
except ImportError as e:
    raise MissingError(
        "redhost.sklearn needs scikit-learn", hint="pip install 'redhost[sklearn]'"
    ) from e

__all__ = ["HostClassifier"]


class HostClassifier(ClassifierMixin, BaseEstimator):
    """The current generation of a home, or a given one.

    Experts and router are already trained, on their teams' rows and on the cards. So `fit` trains
    nothing: it loads the generation and checks that every label can be answered.

    Args:
        home: The state folder; by default ``REDHOST_HOME`` or ``.redhost``.
        generation: Which generation; None for the one that is current when `fit` is called.
        device: The device of the trunk, e.g. ``cuda``.

    Attributes:
        classes_: All possible answers, sorted; includes ``none`` if texts may be declined.
        generation_: The generation that answers.
    """

    def __init__(
        self,
        home: str | Path | None = None,
        *,
        generation: int | None = None,
        device: str | None = None,
    ) -> None:
        self.home = home
        self.generation = generation
        self.device = device

    def fit(self, X: Any, y: Iterable[str] | None = None) -> Self:
        """Load the generation.

        Args:
            X: Texts; nothing is trained on them.
            y: Their labels.

        Raises:
            UsageError: If a label cannot be answered, the numbers of labels and texts differ, or
                answers are not labels.
            MissingError: If nothing has been composed in this home.
        """
        texts, labels = texts_of(X), [] if y is None else [*map(str, y)]
        if y is not None and len(labels) != len(texts):
            raise UsageError(
                "labels of texts", expected=f"{len(texts):,}", found=f"{len(labels):,}"
            )
        host = Host.open(self.home, device=self.device)
        model = host.composed if self.generation is None else host.load(self.generation)
        head = model.bus.task.head
        if not head.distribution or head.vocabulary:
            raise UsageError(
                "a classifier", expected="a backbone that answers labels", found=head.noun
            )
        declines = {"none"} if model.decline or not model.bus.shared_labels else set[str]()
        classes = sorted({*model.bus.labels, *declines})
        known = {*classes}
        for place, label in enumerate(labels):
            if label not in known:
                raise UsageError(
                    f"the label {label!r} at place {place} cannot be answered",
                    expected=", ".join(classes[:5]),
                    hint=suggest(label, classes).rstrip(),
                )
        self.model_, self.generation_ = model, model.generation
        self.classes_ = np.array(classes)
        return self

    def predict(self, X: Any) -> Any:
        """Return the label of each text, ``(N,)``; ``none`` if it is declined."""
        check_is_fitted(self)
        return np.array(
            [a.label for a in self.model_.answer(texts_of(X))], dtype=self.classes_.dtype
        )

    def predict_proba(self, X: Any) -> Any:
        """Return p(y|x) over `classes_`, ``(N, L)``; declined texts are answered as well."""
        check_is_fitted(self)
        p = self.model_.probabilities(texts_of(X)).double().numpy()
        found = np.zeros((len(p), len(self.classes_)))
        found[:, np.searchsorted(self.classes_, self.model_.bus.labels)] = p
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters without the model: a copy in another process loads it again."""
        state: Any = super().__getstate__()
        return {k: v for k, v in state.items() if k != "model_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "generation_" in state:
            host = Host.open(self.home, device=self.device)
            self.model_ = host.load(state["generation_"])

    def __sklearn_tags__(self) -> Any:
        """Declare that inputs are texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.input_tags.one_d_array = True
        tags.no_validation = True
        return tags


def texts_of(given: Any) -> list[str]:
    """Return a column of texts as a list: any iterable, or a table with one column.

    Raises:
        InputTypeError: If it is anything else.
    """
    shape: tuple[int, ...] = getattr(given, "shape", ())
    if len(shape) == 2 and shape[1] == 1:  # noqa: PLR2004  (a table)
        given = np.asarray(given)[:, 0]
    return as_list(given, str, "text")
