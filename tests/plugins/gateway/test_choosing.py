"""Which texts a choice is made by, and which expert a conversation stays with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from redhost_gateway.choosing import REMEMBERED, TURNS, Serving
from redhost_gateway.evidence import conversations, window
from redhost_gateway.problems import Problem


def fields(**body: Any) -> dict[str, msgspec.Raw]:
    return {k: msgspec.Raw(msgspec.json.encode(v)) for k, v in body.items()}


def message(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


PARTS = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "x"}}]
PARTS += [{"type": "text", "text": "c"}]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"prompt": "a"}, (("a",),)),
        ({"prompt": ["a", "b"]}, (("a",), ("b",))),
        ({"input": "a"}, (("a",),)),
        ({"input": ["a", "b"]}, (("a",), ("b",))),
        ({"input": [message("a"), message("b")]}, (("a", "b"),)),
        ({"messages": [message("a"), message("x", "assistant"), message(PARTS)]}, (("a", "b\nc"),)),
        ({"messages": [message("a"), message(None), message(" ")], "tools": [1]}, (("a",),)),
        (
            {"messages": [message("a"), {"role": "tool", "tool_call_id": "1", "content": []}]},
            (("a",),),
        ),
    ],
)
def test_the_evidence_of_a_request(body, found) -> None:
    assert conversations(fields(**body)) == found


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": 3},
        {"prompt": ["a", ""]},
        {"prompt": [[1]]},
        {"input": []},
    ],
)
def test_without_text_nothing_is_chosen(body) -> None:
    with pytest.raises(Problem) as refused:
        conversations(fields(**body))
    assert (refused.value.status, refused.value.code) == (400, "no_text")


@pytest.mark.parametrize(
    ("newest_first", "longest", "found"),
    [
        (True, 100, "ccc\nbb\na"),
        (False, 100, "a\nbb\nccc"),
        (True, 7, "ccc\nbb"),
        (False, 6, "bb\nccc"),
        (True, 5, "ccc"),
        (True, 2, "cc"),
    ],
)
def test_the_newest_texts_that_fit(newest_first, longest, found) -> None:
    turns = ["a", "bb", "ccc"]
    assert window(turns, newest_first=newest_first, longest=longest) == found


def test_which_end_of_a_long_text_is_read() -> None:
    assert window(["abc"], newest_first=True, longest=1) == "a"
    assert window(["abc"], newest_first=False, longest=1) == "c"


class Counts:
    """Weights by the letters of a text, and which texts they were seen for."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        self.seen += texts
        counts = torch.tensor([[t.count("x") + 1e-9, t.count("y") + 0.0] for t in texts])
        return counts / counts.sum(-1, keepdim=True)


def serving(weights: Any, margin: float) -> Serving:
    return Serving(
        number=1,
        columns=("xs", "ys"),
        adapters={},
        weights_of=weights,
        newest_first=True,
        margin=margin,
        queue=8,
    )


def held(turns: str, *, margin: float) -> str:
    """Return the expert after the last of a conversation's turns, of a letter each."""
    made = serving(Counts(), margin)

    async def ask() -> str:
        try:
            return (await made.choose([tuple(turns)])).expert
        finally:
            await made.close()

    return asyncio.run(ask())


def test_a_conversation_stays_until_another_leads_by_the_margin() -> None:
    # Weights of ys after each turn of "xyyy": 0, .5, .667, .75: they lead by 0, .333, .5.
    assert [held("xyyy"[:n], margin=0.4) for n in range(1, 5)] == ["xs", "xs", "xs", "ys"]
    assert [held("xyyy"[:n], margin=0.3) for n in range(1, 5)] == ["xs", "xs", "ys", "ys"]
    assert [held("xyyy"[:n], margin=0) for n in range(1, 5)] == ["xs", "xs", "ys", "ys"]
    assert held("xyyyx", margin=0.4) == "ys"  # .6 against .4: it stays where it went
    assert held("xyyyxx", margin=0.4) == "ys"
    assert held("xyyyxxx", margin=0) == "xs"


def test_a_turn_computes_the_weights_of_one_more_text() -> None:
    weights = Counts()
    made = serving(weights, 0.2)

    async def talk() -> list[int]:
        sizes = []
        for n in range(1, TURNS + 3):
            await made.choose([tuple("xy" * n)[:n]])
            sizes.append(len(weights.seen))
        await made.close()
        return sizes

    assert asyncio.run(talk()) == list(range(1, TURNS + 3))
    assert len(set(weights.seen)) == len(weights.seen)


def test_what_is_remembered_is_bounded() -> None:
    made = serving(Counts(), 0.2)

    async def talk() -> None:
        for n in range(REMEMBERED + 50):
            await made.choose([(f"x{n}",)])
        await made.close()

    asyncio.run(talk())
    assert len(made._rows) == REMEMBERED


def test_a_router_that_fails_is_a_problem_and_not_the_end() -> None:
    def fails(texts: Sequence[str]) -> torch.Tensor:
        if "bad" in texts:
            raise RuntimeError("secret text")
        return torch.tensor([[1.0, 0.0]] * len(texts))

    made = serving(fails, 0.2)

    async def ask() -> None:
        with pytest.raises(Problem) as refused:
            await made.choose([("bad",)])
        assert (refused.value.status, refused.value.code) == (503, "router_failed")
        assert "secret" not in refused.value.message
        assert (await made.choose([("good",)])).expert == "xs"
        await made.close()

    asyncio.run(ask())
