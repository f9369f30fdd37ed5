"""The closed form: rows left out are refits without them, and many rows are solved alike."""

from __future__ import annotations

import numpy as np
import pytest
from redhost_words import ridge
from redhost_words.ridge import idf_of, normalised, solve
from redhost_words.scalars import fit_scalars
from scipy import sparse

PENALTY = 0.3


def rows_of(count: int) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    u = sparse.csr_array(chance.random((count, 8)) * (chance.random((count, 8)) < 0.5))
    z = chance.standard_normal((count, 4))
    target = (z[:, 0] + u.toarray()[:, 0] > 0.3).astype(np.int64)
    return normalised(u, idf_of(u)), z, target


def test_rows_have_length_one_and_rare_places_count_more() -> None:
    u = sparse.csr_array(np.array([[1.0, 1, 0], [1, 0, 1], [1, 0, 0]]))
    idf = idf_of(u)
    np.testing.assert_allclose(idf, 1 + np.log([1, 2, 2]))
    dense = normalised(u, idf).toarray()
    np.testing.assert_allclose(np.linalg.norm(dense, axis=1), 1)
    assert dense[0, 1] / dense[0, 0] == pytest.approx(1 + np.log(2))


def test_a_left_out_score_is_that_of_a_refit_without_the_row() -> None:
    f, z, target = rows_of(12)
    right = np.eye(2)[target] - np.bincount(target) / 12
    _, left_out = ridge._left_out(f, z, right, PENALTY)
    kernel = (f @ f.T).toarray() + z @ z.T
    for n in range(12):
        others = np.arange(12) != n
        inner = kernel[np.ix_(others, others)] + PENALTY * np.eye(11)
        refit = kernel[n, others] @ np.linalg.solve(inner, right[others])
        np.testing.assert_allclose(left_out[n], refit)
    tried = dict(ridge._left_out_by(f, z * 2, right, 4))
    assert {earlier for _, _, earlier in tried} == {1.0}
    np.testing.assert_allclose(tried[1.0, PENALTY, 1.0], left_out)  # c / D is 1 / 4


def test_states_before_the_last_layer_may_count_less() -> None:
    f, z, target = rows_of(12)
    right, less = np.eye(2)[target] - np.bincount(target) / 12, np.sqrt([1 / 6, 1 / 6, 1, 1])
    _, left_out = ridge._left_out(f, z * less, right, PENALTY)
    tried = dict(ridge._left_out_by(f, z * 2, right, 2))
    np.testing.assert_allclose(tried[1.0, PENALTY, 1 / 6], left_out)
    assert len(tried) == 2 * len(ridge.SHARES) * len(ridge.PENALTIES)


@pytest.mark.parametrize("says", ["last", "earlier"])
def test_what_counts_less_is_chosen_by_rows_left_out(says: str) -> None:
    chance = np.random.default_rng(1)
    target = np.arange(120) % 2
    z = chance.standard_normal((120, 40))
    z[:, {"last": slice(20, 40), "earlier": slice(0, 20)}[says]] += 0.5 * target[:, None]
    solved = solve(sparse.csr_array((120, 8)), z, np.eye(2, dtype=np.int64)[target], last=20)
    early, last = np.abs(np.split(solved.states, 2, axis=1)).mean(axis=(1, 2))
    assert (early < last / 3) == (says == "last")


def test_of_two_rows_a_label_nothing_is_chosen_and_scores_count() -> None:
    f, z, target = rows_of(12)
    few = [*np.where(target == 0)[0][:2], *np.where(target == 1)[0][:2]]
    solved = solve(f[few], z[few], np.eye(2, dtype=np.int64)[target[few]], last=3)
    c, penalty, earlier = ridge.FEW
    beta, first, second = ridge.START
    weighted = z[few] * [earlier, 1, 1, 1]
    kernel = (f[few] @ f[few].T).toarray() + c * weighted @ z[few].T / z.shape[1]
    alpha = np.linalg.solve(kernel + penalty * np.eye(4), np.eye(2)[target[few]] - 0.5)
    np.testing.assert_allclose(
        f[few] @ solved.words + z[few] @ solved.states.T, beta * kernel @ alpha, atol=1e-9
    )
    np.testing.assert_allclose(solved.bias, first * np.log(2 + ridge.EQUAL) + second / 2)


def test_more_rows_than_are_solved_at_once_have_nearly_the_same_weights(monkeypatch) -> None:
    f, z, target = rows_of(300)
    exact = solve(f, z, np.eye(2, dtype=np.int64)[target], last=4)
    monkeypatch.setattr(ridge, "EXACT", 299)  # scalars by every second row
    many = solve(f, z, np.eye(2, dtype=np.int64)[target], last=4)
    scale = float(np.sum(many.words * exact.words) / np.square(exact.words).sum())
    np.testing.assert_allclose(many.words, scale * exact.words, atol=1e-4)
    np.testing.assert_allclose(many.states, scale * exact.states, atol=1e-4)
    assert 0.5 < scale < 2


def test_scalars_stay_where_they_start_if_rows_say_nothing() -> None:
    flat = np.zeros((4, 2))
    found = fit_scalars([flat, flat], np.array([0, 1, 0, 1]), start=(3.0, 0.0), positive=1)
    np.testing.assert_allclose(found.values, [3.0, 0.0], atol=1e-6)
    assert found.loss == pytest.approx(np.log(2))


def test_scalars_maximise_the_likelihood_of_many_weighted_rows() -> None:
    score, target = np.tile([[1.0, 0.0]], (4000, 1)), (np.arange(4000) % 4 == 0).astype(np.int64)
    even = fit_scalars([score], target, start=(1.0,), positive=1)
    assert even.values[0] == pytest.approx(np.log(3), rel=1e-2)
    weight = np.where(target == 1, 3.0, 1.0)
    weighted = fit_scalars([score], target, start=(1.0,), positive=1, weight=weight)
    assert weighted.values[0] == pytest.approx(0, abs=1e-2)
