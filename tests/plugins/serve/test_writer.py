"""The thread that generates: texts get their tokens in turn, also while a long prompt is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redhost_serve.writer import READING, Writer


def test_others_get_tokens_while_a_prompt_is_read_in_parts() -> None:
    made = list[tuple[str, Any]]()

    def read_batch(texts: Sequence[Iterator[Any]]) -> list[Callable[[], Any]]:
        return [lambda text=text: next(text, None) for text in texts]

    async def collect(writer: Writer, name: str, steps: Sequence[Any]) -> None:
        async for token in writer.write(lambda: iter(steps)):
            made.append((name, token))

    async def both(writer: Writer) -> None:
        long = collect(writer, "long", [READING] * 4 + ["a", "b"])
        await asyncio.gather(long, collect(writer, "short", [1, 2, 3]))

    writer = Writer(queue=2, texts=2, read_batch=read_batch)
    try:
        asyncio.run(both(writer))
    finally:
        writer.close()
    assert [t for name, t in made if name == "long"] == [None, "a", "b"]
    assert [t for name, t in made if name == "short"] == [None, 1, 2, 3]
    assert made.index(("short", 2)) < made.index(("long", "a"))  # not after the whole prompt
