"""Errors reach another process as they are, whatever arguments made them."""

from __future__ import annotations

import pickle

import pytest

from redhost.registry import errors
from redhost.registry.errors import RedhostError, UnknownNameError

KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, RedhostError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_worker_is_the_same_here(kind: type[RedhostError]) -> None:
    if kind is UnknownNameError:
        error: RedhostError = UnknownNameError("expert", "alhpa", ["alpha", "beta"])
    else:
        error = kind("it failed", expected="a", found="b", hint="Try c.")
    same = pickle.loads(pickle.dumps(error))
    assert (type(same), str(same), same.hint) == (kind, str(error), error.hint)
    assert (repr(same), same.reason) == (repr(error), error.reason)
