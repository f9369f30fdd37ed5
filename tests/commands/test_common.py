"""What commands share: imports that the collector does not traverse."""

from __future__ import annotations

import gc

import pytest

from redhost.commands.common import imports


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
