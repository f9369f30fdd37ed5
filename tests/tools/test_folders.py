"""What the first test of a name leaves in a folder, the next find in theirs, and change alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import made_once


def test_a_folder_is_filled_once_and_each_has_a_copy_of_its_own(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fill = made_once(tmp_path_factory)
    empties = []
    for place in ("one", "two", "three"):
        folder = tmp_path / place
        with fill("home", folder) as empty:
            empties.append(empty)
            if empty:
                folder.mkdir()
                (folder / "file").write_text("first")
        assert (folder / "file").read_text() == "first"
        (folder / "file").write_text(place)
    assert empties == [True, False, False]
    with fill("another", tmp_path / "four") as empty:
        assert empty
        (tmp_path / "four").mkdir()


def test_what_failed_is_filled_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fill = made_once(tmp_path_factory)
    with pytest.raises(ZeroDivisionError), fill("home", tmp_path / "one"):
        raise ZeroDivisionError
    with fill("home", tmp_path / "two") as empty:
        assert empty
        (tmp_path / "two").mkdir()
