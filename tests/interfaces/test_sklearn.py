"""A host as a classifier: what scikit-learn checks of every estimator, and its own tools on it."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import redhost
from redhost.registry.errors import InputTypeError
from redhost.sklearn import HostClassifier


def answers_of(texts: list[str]) -> list[str]:
    """Return the sums that the texts ask for."""
    return [str(sum(int(w.strip("?")) for w in t.split() if w.strip("?").isdigit())) for t in texts]


OF_PARAMETERS = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)
"""Those of scikit-learn's checks that bring no rows: all others bring tables of numbers."""


@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_scikit_learns_own_checks_pass(home, name) -> None:
    getattr(estimator_checks, name)("HostClassifier", HostClassifier(home))


@pytest.mark.filterwarnings("ignore:Can't test estimator")
def test_what_scikit_learn_checks_of_estimators_for_texts_passes(home) -> None:
    report = estimator_checks.check_estimator(HostClassifier(home), on_fail=None)
    assert {r["status"] for r in report} == {"passed"}


def test_it_answers_as_the_host_does(home, sums) -> None:
    texts = [*sums(20), "good morning to you"]
    host = redhost.Host.open(home)
    expected = [a.label for a in host.predict(texts)]
    model = HostClassifier(home).fit(texts)
    assert model.predict(texts).tolist() == expected and expected[-1] == "none"
    assert model.generation_ == 1 and list(model.classes_) == sorted(model.classes_)
    p = model.predict_proba(texts)
    assert p.shape == (21, len(model.classes_)) and np.allclose(p.sum(1), 1, atol=1e-5)
    best = model.classes_[p.argmax(1)]
    answered = [n for n, y in enumerate(expected) if y != "none"]
    assert best[answered].tolist() == [expected[n] for n in answered]


def test_any_column_of_texts_will_do(home, sums) -> None:
    texts = sums(5)
    model = HostClassifier(home).fit(texts)
    expected = model.predict(texts).tolist()
    for given in (
        np.array(texts),
        np.array(texts)[:, None],
        pd.Series(texts),
        pd.DataFrame({"t": texts}),
        pl.Series(texts),
        (t for t in texts),
    ):
        assert model.predict(given).tolist() == expected
    for wrong in (np.zeros((3, 2)), pd.DataFrame({"a": texts, "b": texts}), [1, 2], "one"):
        if isinstance(wrong, str):
            assert len(model.predict(wrong)) == 1
            continue
        with pytest.raises(InputTypeError):
            model.predict(wrong)


def test_its_tools_take_it(home, sums) -> None:
    texts = sums(40)
    y = answers_of(texts)
    assert cross_val_score(HostClassifier(home), texts, y, cv=KFold(2)).mean() > 0.9
    column = ColumnTransformer([("text", "passthrough", ["text"])])
    frame = pd.DataFrame({"id": range(40), "text": texts})
    piped = make_pipeline(column, HostClassifier(home)).fit(frame, y)
    assert accuracy_score(y, piped.predict(frame)) > 0.9
    loud = make_pipeline(
        FunctionTransformer(lambda x: [t.strip() for t in x]), HostClassifier(home)
    )
    assert loud.fit(texts, y).score([f" {t} " for t in texts], y) > 0.9


NUMBERS = (
    list,
    np.array,
    pd.Series,
    pl.Series,
    lambda y: np.array(y, np.int16),
    lambda y: pd.Series(y, dtype="Int64"),
    lambda y: np.array(y, np.float64),
)


@pytest.mark.parametrize("column", NUMBERS)
def test_labels_that_are_numbers_are_answered_as_numbers(home, sums, column) -> None:
    texts = sums(40)
    y = column([int(label) for label in answers_of(texts)])
    model = HostClassifier(home).fit(texts, y)
    assert model.score(texts, y) > 0.9
    found, kind = model.predict([*texts, "good morning to you"]), np.asarray([*y]).dtype
    assert found.dtype == model.classes_.dtype == kind and found[-1] == -1
    assert [*model.classes_] == sorted(model.classes_)
    p = model.predict_proba(texts)
    words = HostClassifier(home).fit(texts)
    assert [str(int(c)) for c in model.classes_[p.argmax(1)]] == [
        *words.classes_[words.predict_proba(texts).argmax(1)]
    ]
    assert pickle.loads(pickle.dumps(model)).predict(texts).tolist() == found[:-1].tolist()
    assert cross_val_score(HostClassifier(home), texts, y, cv=KFold(2)).mean() > 0.9


def test_numbers_that_cannot_be_all_answers_are_refused(home, sums) -> None:
    for y in ([True, False], np.array([1, 2], np.uint8)):
        with pytest.raises(redhost.UsageError, match="Give the labels as texts"):
            HostClassifier(home).fit(sums(2), y)
    with pytest.raises(redhost.UsageError, match="label 10000 at place 1"):
        HostClassifier(home).fit(sums(2), [49, 10000])


def test_a_copy_in_another_process_answers_the_same(home, sums) -> None:
    model = HostClassifier(home).fit(sums(3))
    data = pickle.dumps(model)
    again = pickle.loads(data)
    assert again.predict(sums(3)).tolist() == model.predict(sums(3)).tolist()
    assert len(data) < 10_000  # no weights: they are in the home
    assert clone(model).get_params() == model.get_params()


def test_a_label_that_nobody_answers_is_refused(home, sums) -> None:
    with pytest.raises(redhost.UsageError, match="'greeting' at place 1"):
        HostClassifier(home).fit(sums(2), ["49", "greeting"])
    with pytest.raises(redhost.UsageError, match="expected 2, found 1"):
        HostClassifier(home).fit(sums(2), ["49"])
    with pytest.raises(redhost.MissingError):
        HostClassifier(home / "elsewhere").fit(sums(2))
