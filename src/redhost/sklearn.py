"""A host as a scikit-learn classifier, for its pipelines, metrics and model selection.

Needs scikit-learn: ``pip install 'redhost[sklearn]'``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from .core.host import Host
from .core.label_sets import NONE
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
        classes_: All possible answers, sorted, of the type of the labels that `fit` was given; it
            includes ``none`` if texts may be declined, which is −1 among numbers.
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

    def fit(self, X: Any, y: Iterable[str | float] | None = None) -> Self:
        """Load the generation.

        Args:
            X: Texts; nothing is trained on them.
            y: Their labels, as texts or as numbers; answers are of the same type.

        Raises:
            UsageError: If a label cannot be answered, the numbers of labels and texts differ,
                answers are not labels, or are not numbers and the given ones are.
            MissingError: If nothing has been composed in this home.
        """
        texts, labels = texts_of(X), np.asarray([] if y is None else [*y])
        if y is not None and len(labels) != len(texts):
            raise UsageError(
                "labels of texts", expected=f"{len(texts):,}", found=f"{len(labels):,}"
            )
        host = Host.open(self.home, device=self.device)
        model = host.composed if self.generation is None else host.load(self.generation)
        task = model.bus.task
        if not task.one_label:
            raise UsageError(
                "a classifier", expected="a backbone that answers labels", found=task.head.noun
            )
        declines = {NONE} if model.decline or not model.bus.shared_labels else set[str]()
        names = sorted({*(label or NONE for label in model.bus.labels), *declines})
        values = _typed(names, labels)
        answerable = {*values.tolist()}
        for place, label in enumerate(labels.tolist()):
            if label not in answerable:
                raise UsageError(
                    f"the label {label!r} at place {place} cannot be answered",
                    expected=", ".join(names[:5]),
                    hint=suggest(str(label), names).rstrip(),
                )
        self.model_, self.generation_ = model, model.generation
        self.classes_, places = np.unique(values, return_inverse=True)
        self.place_ = dict(zip(names, places.tolist(), strict=True))
        return self

    def predict(self, X: Any) -> Any:
        """Return the label of each text, ``(N,)``; ``none``, or −1, if it is declined."""
        check_is_fitted(self)
        places = [self.place_[a.label] for a in self.model_.answer(texts_of(X))]
        return self.classes_[np.array(places, dtype=int)]

    def predict_proba(self, X: Any) -> Any:
        """Return p(y|x) over `classes_`, ``(N, L)``; declined texts are answered as well."""
        check_is_fitted(self)
        p = self.model_.probabilities(texts_of(X)).double().numpy()
        by_class = np.zeros((len(p), len(self.classes_)))
        for label, column in zip(self.model_.bus.labels, p.T, strict=True):
            by_class[:, self.place_[label or NONE]] += column
        return by_class

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


def _typed(names: list[str], labels: Any) -> Any:
    """Return the names of answers as values of the type of given labels, in the same order.

    Raises:
        UsageError: If a name is no value of it, or two are the same.
    """
    if not len(labels) or labels.dtype.kind not in "iufb":
        return np.array(names)
    name = ""
    try:
        values = [labels.dtype.type(-1 if (name := n) == NONE else float(n)) for n in names]
        if len({*values}) == len(names) and labels.dtype.kind != "b":
            return np.array(values)
    except (ValueError, OverflowError):
        pass
    raise UsageError(
        f"answers as {labels.dtype} labels",
        expected="a number of its own for every answer, and -1 for a declined text",
        found=repr(name),
        hint="Give the labels as texts.",
    )


def texts_of(given: Any) -> list[str]:
    """Return a column of texts as a list: any iterable, or a table with one column.

    Raises:
        InputTypeError: If it is anything else.
    """
    shape: tuple[int, ...] = getattr(given, "shape", ())
    if len(shape) == 2 and shape[1] == 1:  # noqa: PLR2004  (a table)
        given = np.asarray(given)[:, 0]
    return as_list(given, str, "text")
