"""Texts whose keys and values stand side by side: each goes on as it would alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from redhost_generate import tables
from redhost_generate.sessions import DecodingSession
from redhost_generate.tables import Row, room_for

from ...support.sessions import step_together
from .test_decode import ids_of

PROMPTS = ("the cat sat ", "3 + 4 = ", "once upon a time there was a king who ")


@pytest.fixture(autouse=True)
def packed(composed, monkeypatch) -> None:
    """The encoder reads texts in packs, as one with wider heads does."""
    trunk = composed.backbone.trunk
    monkeypatch.setattr(trunk, "tiles", dataclasses.replace(trunk.tiles, is_packed=True))


def begun(composed) -> list[DecodingSession]:
    """Return sessions that have read their prompts."""
    sessions = [DecodingSession(composed) for _ in PROMPTS]
    for session, prompt in zip(sessions, PROMPTS, strict=True):
        session.step(ids_of(composed, prompt))
    return sessions


def assert_as_alone(composed, sessions, tokens: list[list[int]]) -> None:
    """Compare keys and values with those of texts that were alone all the time."""
    for session, alone, ids in zip(sessions, begun(composed), tokens, strict=True):
        for token in ids:
            alone.step([token])
        assert session.seen == alone.seen
        for mine, theirs in zip(session.cache.layers, alone.cache.layers, strict=True):
            assert torch.allclose(mine.keys, theirs.keys, atol=1e-5)
            assert torch.allclose(mine.values, theirs.values, atol=1e-5)


def test_the_same_texts_stay_in_one_table_in_any_order(composed) -> None:
    sessions = begun(composed)
    step_together(sessions, [[5], [6], [7]])
    made = {s.past.table for s in sessions}
    step_together(sessions[::-1], [[9], [10], [11]])
    assert len(made) == 1 and {s.past.table for s in sessions} == made
    assert_as_alone(composed, sessions, [[5, 11], [6, 10], [7, 9]])


def test_one_that_is_left_out_takes_a_copy_and_comes_back(composed) -> None:
    sessions = begun(composed)
    step_together(sessions, [[5], [6], [7]])
    before = sessions[1].past.table
    step_together([sessions[0], sessions[2]], [[8], [9]])
    assert not isinstance(sessions[1].past, Row)  # it keeps no table of others in memory
    assert before not in {sessions[0].past.table, sessions[2].past.table}
    sessions[1].step([12])
    step_together(sessions, [[13], [14], [15]])
    assert_as_alone(composed, sessions, [[5, 8, 13], [6, 12, 14], [7, 9, 15]])


def test_a_row_that_is_full_moves_to_a_table_with_more_room(composed, monkeypatch) -> None:
    monkeypatch.setattr(tables, "LEAST", 4)
    sessions, rooms = begun(composed), list[tuple[int, ...]]()
    fed = [[20 + n + 3 * k for k in range(9)] for n in range(3)]
    for k in range(9):
        step_together(sessions, [[ids[k]] for ids in fed])
        rooms.append(tuple(s.past.table.room for s in sessions))
        assert rooms[-1] == tuple(room_for(s.seen) for s in sessions)
    assert len(set(rooms)) > 1
    assert_as_alone(composed, sessions, fed)


def test_a_pass_that_failed_is_overwritten(composed, monkeypatch) -> None:
    sessions, model = begun(composed), composed.backbone.trunk.model
    step_together(sessions, [[5], [6], [7]])
    with monkeypatch.context() as patch:
        patch.setattr(model.norm, "forward", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            step_together(sessions, [[30], [31], [32]])
    step_together(sessions, [[8], [9], [10]])
    assert_as_alone(composed, sessions, [[5, 8], [6, 9], [7, 10]])


def test_rooms_are_powers_of_two() -> None:
    assert [room_for(n) for n in (1, 64, 65, 128, 129)] == [64, 64, 128, 128, 256]
