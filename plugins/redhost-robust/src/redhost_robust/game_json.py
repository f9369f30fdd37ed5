"""Solve a game given as JSON: ``{"domains": [[…]], "experts": [[…]]}`` to value and gate."""

from __future__ import annotations

import json
from typing import Any

from .errors import GameError
from .game import Game
from .solution import GateSolution
from .solve import solve_gate

__all__ = ["read_game", "solve_json"]

_EXAMPLE = 'Write {"domains": [[0.9, 0.1], [0.2, 0.8]], "experts": [[0.8, 0.2], [0.3, 0.7]]}.'
_NEEDED = ("domains", "experts")
_KNOWN = (*_NEEDED, "floor")


def solve_json(data: bytes, *, tol: float = 1e-8) -> dict[str, Any]:
    """Solve a finite game over G1.

    Args:
        data: UTF-8 JSON, an object with ``domains`` and ``experts``, K rows of X probabilities
            each, and optionally ``floor``, the weight of the uniform distribution that is mixed
            into every expert (0 by default).
        tol: Stop once upper − lower is below this, nats.

    Returns:
        ``value``, ``lower``, ``upper`` (nats), ``lambda`` (K numbers), ``gate`` (X rows of K
        numbers) and ``iterations``, as plain numbers and lists.

    Raises:
        GameError: If the data is not such a game; the message names the row.
    """
    return _written(solve_gate(read_game(data), tol=tol))


def read_game(data: bytes) -> Game:
    """Return the game that the JSON describes.

    Raises:
        GameError: If the data is not such a game; the message names the row.
    """
    loaded = _load(data)
    if not isinstance(loaded, dict):
        raise GameError("game", expected="an object", found=_kind(loaded), hint=_EXAMPLE)
    for key in _NEEDED:
        if key not in loaded:
            found = ", ".join(sorted(loaded)) or "no keys"
            raise GameError("game", expected=f"the key '{key}'", found=found, hint=_EXAMPLE)
    if unknown := sorted(set(loaded) - set(_KNOWN)):
        raise GameError("game", expected=f"only {', '.join(_KNOWN)}", found=", ".join(unknown))
    for key in _NEEDED:
        _check_rows(key, loaded[key])
    floor = loaded.get("floor", 0.0)
    if not _is_number(floor):
        raise GameError("floor", expected="a number in [0, 1)", found=_kind(floor))
    game = Game.of_rows(loaded["domains"], loaded["experts"], floor=floor)
    game.require_own_experts()
    return game


def _load(data: bytes) -> Any:
    """Parse strict JSON: no NaN, no Infinity, no duplicate keys."""
    try:
        return json.loads(data, parse_constant=_refuse, object_pairs_hook=_once)
    except GameError:
        raise
    except (ValueError, RecursionError) as e:  # undecodable bytes are a ValueError as well
        raise GameError("game", expected="JSON", found=str(e), hint=_EXAMPLE) from e


def _refuse(constant: str) -> Any:
    raise GameError("game", expected="finite numbers", found=constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    loaded: dict[str, Any] = {}
    for name, value in pairs:
        if name in loaded:
            raise GameError("game", expected="each key once", found=f"'{name}' again")
        loaded[name] = value
    return loaded


def _check_rows(key: str, rows: Any) -> None:
    """Refuse values that numpy would silently convert to numbers: text, true, null, nested ones."""
    if not isinstance(rows, list):
        raise GameError(key, expected="a list of rows", found=_kind(rows), hint=_EXAMPLE)
    for n, row in enumerate(rows):
        if not isinstance(row, list):
            raise GameError(f"{key}[{n}]", expected="a list of probabilities", found=_kind(row))
        for at, value in enumerate(row):
            if not _is_number(value):
                raise GameError(
                    f"{key}[{n}]", expected="numbers", found=f"{_kind(value)} at position {at}"
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    """Return the name of a JSON value's type, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _written(found: GateSolution) -> dict[str, Any]:
    return {
        "value": found.value,
        "lower": found.lower,
        "upper": found.upper,
        "lambda": found.lambda_.tolist(),
        "gate": found.gate.tolist(),
        "iterations": found.iterations,
    }
