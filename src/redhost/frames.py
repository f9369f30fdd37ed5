"""Answer the rows of pandas, polars and pyarrow tables, and of a `datasets.Dataset`.

Needs narwhals: ``pip install 'redhost[frames]'``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from .core.host import Host
from .core.model.composed import answer_fields
from .registry.errors import InputTypeError, MissingError, UnknownNameError, UsageError

try:
    import narwhals as nw  # pyright: ignore[reportMissingImports]
    from narwhals.exceptions import DuplicateError  # pyright: ignore[reportMissingImports]
except ImportError as e:
    raise MissingError("redhost.frames needs narwhals", hint="pip install 'redhost[frames]'") from e

__all__ = ["answer"]

T = TypeVar("T")


def answer(
    host: Host, table: T, *, text: str = "text", sets: float | None = None, each: bool = False
) -> T:
    """Return a table with the answers to its rows as additional columns.

    The columns are those of ``redhost predict --in``: `answer`, `probability`, `expert`, `weight`,
    `declined`.

    Args:
        host: The host whose current generation answers.
        table: A table of pandas, polars or pyarrow, or a `datasets.Dataset`.
        text: The column with the texts.
        sets: How often the right label is to be in the column `answers`; None for no label sets.
        each: Whether to add the column `by_expert` with the answers of every expert alone.

    Returns:
        A table of the same library.

    Raises:
        InputTypeError: If it is no such table.
        UnknownNameError: If it has no such column.
        UsageError: If a row has no text, or a column has the name of an added one.
    """
    frame = _opened(table)
    texts = _texts(frame, text)
    # A table without rows gets the same columns, so answer a placeholder text.
    rows = [answer_fields(a) for a in host.predict(texts or ["any"], sets=sets, each=each)]
    columns = {name: [row[name] for row in rows[: len(texts)]] for name in rows[0]}
    if taken := [name for name in columns if name in _names(frame)]:
        raise UsageError(
            f"there is a column {taken[0]!r} already",
            expected="other names than those of the answers",
            found=", ".join(taken),
        )
    answered: T = _with(frame, columns)
    return answered


def _is_dataset(table: Any) -> bool:
    """Return whether it is a `datasets.Dataset`, which narwhals does not support."""
    return any(c.__module__.partition(".")[0] == "datasets" for c in type(table).__mro__)


def _opened(table: Any) -> Any:
    if _is_dataset(table):
        return table
    try:
        return nw.from_native(table, eager_only=True)
    except TypeError:
        raise InputTypeError(
            "no table",
            expected="one of pandas, polars or pyarrow, or a datasets.Dataset",
            found=type(table).__name__,
        ) from None
    except DuplicateError as e:
        raise UsageError(
            "a table",
            expected="columns of different names",
            found=str(e).splitlines()[-1].strip("- "),
        ) from e


def _names(frame: Any) -> Sequence[str]:
    names: Sequence[str] = frame.column_names if _is_dataset(frame) else frame.columns
    return names


def _texts(frame: Any, column: str) -> list[str]:
    if column not in _names(frame):
        raise UnknownNameError("column", column, map(str, _names(frame)))
    texts = list(frame[column])
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise UsageError(
                f"row {row}, column {column!r}", expected="a text", found=repr(text)[:40]
            )
    return texts


def _with(frame: Any, columns: Mapping[str, Sequence[object]]) -> Any:
    if not _is_dataset(frame):
        space = nw.get_native_namespace(frame)
        series = (nw.new_series(name, values, backend=space) for name, values in columns.items())
        return frame.with_columns(*series).to_native()
    for name, values in columns.items():
        frame = frame.add_column(name, values)
    return frame
