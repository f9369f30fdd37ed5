"""A game as JSON: what comes out, and which error each fault gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
from redhost_robust.errors import GameError
from redhost_robust.game_json import read_game, solve_json
from redhost_robust.gates import normaliser

GOOD = {"domains": [[0.89, 0.11], [0.11, 0.89]], "experts": [[0.89, 0.11], [0.11, 0.89]]}


def test_the_answer_is_plain_json() -> None:
    answer = solve_json(json.dumps(GOOD).encode())
    assert list(answer) == ["value", "lower", "upper", "lambda", "gate", "iterations"]
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["value"] == pytest.approx(0.34663184, abs=1e-7)
    assert answer["lower"] <= answer["value"] <= answer["upper"]
    assert answer["lambda"] == pytest.approx([0.5, 0.5], abs=1e-6)
    assert isinstance(answer["iterations"], int)
    assert normaliser(np.array(answer["gate"]), np.array(GOOD["experts"])) == pytest.approx(1)


def test_the_tolerance_is_where_it_stops(games) -> None:
    game = games(0, noise=1.0)
    data = json.dumps({"domains": game.domains.tolist(), "experts": game.experts.tolist()}).encode()
    close, rough = solve_json(data), solve_json(data, tol=0.05)
    assert close["upper"] - close["lower"] < 1e-8 < rough["upper"] - rough["lower"] < 0.05
    assert rough["iterations"] < close["iterations"]


def test_whole_numbers_and_a_floor_are_welcome() -> None:
    game = read_game(b'{"domains": [[1, 0], [0, 1]], "experts": [[1, 0], [1, 0]], "floor": 0.1}')
    np.testing.assert_allclose(game.experts, [[0.95, 0.05], [0.95, 0.05]])


WRONG = {
    "not JSON": (b"{", "game: expected JSON, found Expecting property name"),
    "empty": (b"", "game: expected JSON"),
    "no text": (b"\xff\xfe\xfa", "game: expected JSON"),
    "deep": (b"[" * 100_000, "game: expected JSON"),
    "a list": (b"[1]", "game: expected an object, found a list"),
    "text": (b'"domains"', "game: expected an object, found a string"),
    "no key": (b"{}", "game: expected the key 'domains', found no keys"),
    "one key": (b'{"domains": [[1]]}', "game: expected the key 'experts', found domains"),
    "others": (b'{"x": 1, "domains": 2}', "game: expected the key 'experts', found domains, x"),
    "key twice": (
        b'{"domains": [[1]], "domains": [[1]]}',
        "game: expected each key once, found 'domains' again",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_object_with_two_keys(name: str) -> None:
    data, message = WRONG[name]
    with pytest.raises(GameError) as caught:
        solve_json(data)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "data", [b"{", b"[1]", b'{"domains": [[1]]}', b'{"domains": 1, "experts": 1}']
)
def test_who_has_no_game_is_shown_one_that_can_be_solved(data: bytes) -> None:
    with pytest.raises(GameError) as caught:
        solve_json(data)
    example = caught.value.hint.removeprefix("Write ").removesuffix(".")
    assert solve_json(example.encode())["value"] > 0


ROWS = {
    "null": ("null", "domains: expected a list of rows, found null"),
    "a number": ("3", "domains: expected a list of rows, found a number"),
    "an object": ("{}", "domains: expected a list of rows, found an object"),
    "no rows": ("[]", "domains: expected at least one row, found none"),
    "flat": ("[0.5, 0.5]", "domains[0]: expected a list of probabilities, found a number"),
    "empty row": ("[[0.5, 0.5], []]", "domains[1]: expected a flat list of probabilities"),
    "ragged": ("[[0.5, 0.5], [1]]", "domains[1]: expected 2 probabilities as in domains[0]"),
    "negative": ("[[0.5, 0.5], [1.5, -0.5]]", "domains[1]: expected numbers ≥ 0, found -0.5"),
    "sum": ("[[0.5, 0.5], [0.5, 0.4]]", "domains[1]: expected a sum of 1 within 1e-09, found 0.9"),
    "NaN": ("[[NaN, 1]]", "game: expected finite numbers, found NaN"),
    "Infinity": ("[[-Infinity, 1]]", "game: expected finite numbers, found -Infinity"),
    "1e999": ("[[1e999, 1]]", "domains[0]: expected finite numbers, found inf at position 0"),
    "huge": (f"[[1{'0' * 400}]]", "domains[0]: expected finite numbers, found one too large"),
    "text": ('[["a", 1]]', "domains[0]: expected numbers, found a string at position 0"),
    "digits": ('[["0", 1]]', "domains[0]: expected numbers, found a string at position 0"),
    "true": ("[[true, 0]]", "domains[0]: expected numbers, found true or false at position 0"),
    "nested": ("[[[1], 0]]", "domains[0]: expected numbers, found a list at position 0"),
    "other alphabet": (
        "[[1]]",
        "experts: expected rows over the domains' alphabet of 1 symbols, found 2",
    ),
    "K mismatch": ("[[0.5, 0.5]]", "experts: expected one for each of the 1 domains, found 2"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_cannot_be(name: str) -> None:
    rows, message = ROWS[name]
    experts = json.dumps(GOOD["experts"])
    with pytest.raises(GameError) as caught:
        solve_json(f'{{"domains": {rows}, "experts": {experts}}}'.encode())
    assert str(caught.value).startswith(message)


def test_other_keys_and_other_floors_are_refused() -> None:
    with pytest.raises(
        GameError, match=r"^game: expected only domains, experts, floor, found eps, rho"
    ):
        solve_json(json.dumps({**GOOD, "rho": 1, "eps": 1}).encode())
    with pytest.raises(GameError, match=r"floor: expected a number in \[0, 1\), found a string"):
        solve_json(json.dumps({**GOOD, "floor": "0"}).encode())
    with pytest.raises(GameError, match=r"floor: expected a number in \[0, 1\), found 1"):
        solve_json(json.dumps({**GOOD, "floor": 1}).encode())


def test_a_game_without_a_value_says_what_to_do() -> None:
    data = b'{"domains": [[1, 0], [0, 1]], "experts": [[1, 0], [1, 0]]}'
    with pytest.raises(GameError, match=r"Floor the experts above 0: .* in JSON 'floor'"):
        solve_json(data)
