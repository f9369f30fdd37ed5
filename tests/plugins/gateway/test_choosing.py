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
    # Weights of ys after each turn of "xyyy", alone and with the two before: 0 and 0, 1 and .5, 1
    # and .667, 1 and 1: they lead by -1, .5, .667, 1.
    assert [held("xyyy"[:n], margin=0.7) for n in range(1, 5)] == ["xs", "xs", "xs", "ys"]
    assert [held("xyyy"[:n], margin=0.6) for n in range(1, 5)] == ["xs", "xs", "ys", "ys"]
    assert [held("xyyy"[:n], margin=0) for n in range(1, 5)] == ["xs", "ys", "ys", "ys"]
    assert held("xyyyx", margin=0.4) == "ys"  # .333 against .667: it stays where it went
    assert held("xyyyxx", margin=0.4) == "xs"


@pytest.mark.parametrize("before", [1, 3, 15, 40])
def test_a_new_topic_takes_over_however_long_the_old_one_was(before) -> None:
    conversation = "x" * before + "yy"
    assert held(conversation, margin=0.2) == held(conversation, margin=0.5) == "ys"


def test_what_says_little_is_read_with_what_came_before() -> None:
    """Of "." alone, all weights are nearly those of xs."""
    assert held(".", margin=0.2) == "xs"
    assert held("yyy.", margin=0.2) == held("yyy..", margin=0.2) == "ys"


def test_a_turn_computes_the_weights_of_two_more_texts() -> None:
    weights = Counts()
    made = serving(weights, 0.2)

    async def talk() -> list[int]:
        sizes = []
        for n in range(1, TURNS + 3):
            await made.choose([tuple("xy"[k % 2] * k for k in range(1, n + 1))])
            sizes.append(len(weights.seen))
        await made.close()
        return sizes

    turns = range(1, TURNS + 3)
    assert asyncio.run(talk()) == [1, 3, *(2 * n - 1 for n in turns[2:])]
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


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        ({"rnage3": "x"}, "found 'rnage3'; meant: range3?"),
        ({"Law": "x", "range1": "y"}, "found 'Law'; 'redhost list-experts' lists them"),
        ({"range1": "y", "backbone": "z"}, None),
    ],
)
def test_a_configured_name_of_no_expert_is_one_line(
    composed_home, upstream, gateway_of, caplog, models, problem
) -> None:
    with caplog.at_level("WARNING", "redhost.gateway"):
        gateway_of(composed_home, upstream[0], models=models)
    lines = [r.getMessage() for r in caplog.records if "--model" in r.getMessage()]
    expected = f"models of --model or --config: expected ids of generation 3, {problem}"
    assert lines == ([] if problem is None else [expected])
