"""Work in threads: whatever ends it is an error of that work alone, never the end of the thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import redhost

__all__ = ["WorkError", "attempt", "error_name", "run_contained"]

log = logging.getLogger("redhost.serve")

R = TypeVar("R")


class WorkError(RuntimeError):
    """Work ended by an exception that a future cannot carry: a panic, an exit, a StopIteration.

    Raised in the event loop, these would end the server, or the request would wait for ever.
    """


def run_contained(work: Callable[[], R]) -> R:
    """Run work and return its result.

    Raises:
        Exception: What the work raised.
        WorkError: In place of what a future cannot carry.
    """
    try:
        return work()
    except StopIteration as e:
        raise WorkError(type(e).__name__) from e
    except Exception:
        raise
    except BaseException as e:
        raise WorkError(type(e).__name__) from e


def error_name(error: BaseException) -> str:
    """Return the name of an exception's class, which contains nothing of a client's input."""
    return str(error) if isinstance(error, WorkError) else type(error).__name__


def attempt(
    work: Callable[[], object], *, what: str, ended: Callable[[], bool] = lambda: False
) -> None:
    """Do the repeated work of a thread; log whatever ends it, so that the thread continues.

    Args:
        work: The work.
        what: What cannot be done if it fails, for the log.
        ended: Whether the thread is being stopped, so that an error is expected.
    """
    try:
        run_contained(work)
    except Exception as e:
        if not ended():
            expected = isinstance(e, redhost.RedhostError | OSError)
            log.warning("%s: %s", what, e, exc_info=None if expected else e)
