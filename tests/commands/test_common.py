"""What commands share: long tables, and imports that the collector does not walk over."""

from __future__ import annotations

import gc

import pytest

from redhost.commands.common import LONG, imports, table


def test_a_long_table_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    table("things", ("id", "size"), [(f"thing{n}", n or None) for n in range(LONG + 1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["things", "id        size", "thing0"]
    assert lines[-1] == f"thing{LONG}  {LONG}"
    assert len(lines) == LONG + 3


def test_a_short_table_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    table("things", ("id",), [("thing",)] * LONG)
    assert "┃ id" in capsys.readouterr().out


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_imported_in_the_block_is_left_alone_by_the_collector(fails: bool) -> None:
    before = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError) if fails else imports():
            if fails:
                with imports():
                    raise ImportError
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
