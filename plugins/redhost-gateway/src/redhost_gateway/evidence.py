"""What a request is about: the users' messages of its conversation, or its prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from redhost_gateway.problems import Problem

__all__ = ["conversations", "window"]

LONGEST = 4096
"""Most characters of a conversation that are read."""

SEPARATOR = "\n"


class Part(msgspec.Struct):
    """A part of a message's content; parts without text, such as images, are no evidence."""

    type: str = ""
    text: str | None = None


class Message(msgspec.Struct):
    """A message; whatever else it has passes through untouched."""

    role: str = ""
    content: str | list[Part] | None = None


def conversations(fields: Mapping[str, msgspec.Raw]) -> tuple[tuple[str, ...], ...]:
    """Return the texts that a request's model is chosen by, the oldest first.

    Args:
        fields: The fields of the request's body.

    Returns:
        A conversation for each prompt; each is the texts of its user.

    Raises:
        Problem: 400, if there is no text.
    """
    if "messages" in fields:
        found = [_users(_decoded(fields, "messages", list[Message]))]
    elif "prompt" in fields:
        found = _prompts(_decoded(fields, "prompt", str | list[str]))
    elif "input" in fields:
        given = _decoded(fields, "input", str | list[str | Message])
        messages = [] if isinstance(given, str) else [m for m in given if isinstance(m, Message)]
        texts = given if isinstance(given, str) else [m for m in given if isinstance(m, str)]
        found = [_users(messages)] if messages else _prompts(texts)
    else:
        found = []
    if not found or not all(found):
        raise _no_text()
    return tuple(found)


def window(turns: Sequence[str], *, newest_first: bool, longest: int = LONGEST) -> str:
    """Return the newest texts of a conversation that fit, as one text.

    Args:
        turns: The user's texts, the oldest first.
        newest_first: Whether the newest text begins the result, since the backbone cuts the end of
            a long text; else it ends the result, since the weights are those after the last token.
        longest: Most characters.
    """
    newest = turns[-1]
    chosen = [newest[:longest] if newest_first else newest[-longest:]]
    size = len(chosen[0])
    for turn in reversed(turns[:-1]):
        size += len(SEPARATOR) + len(turn)
        if size > longest:
            break
        chosen.append(turn)
    return SEPARATOR.join(chosen if newest_first else reversed(chosen))


def _users(messages: Sequence[Message]) -> tuple[str, ...]:
    texts = (_text(message) for message in messages if message.role == "user")
    return tuple(text for text in texts if text.strip())


def _text(message: Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return SEPARATOR.join(part.text for part in message.content if part.text)


def _prompts(given: str | Sequence[str]) -> list[tuple[str, ...]]:
    prompts = [given] if isinstance(given, str) else given
    return [(prompt,) if prompt.strip() else () for prompt in prompts]


def _decoded(fields: Mapping[str, msgspec.Raw], name: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(fields[name], type=kind)
    except UnicodeDecodeError as e:
        raise Problem(400, "the body is not UTF-8", code="invalid_utf8") from e
    except msgspec.DecodeError as e:  # it names types and places, and no content
        raise _no_text(f"{name!r}: {e}") from e


def _no_text(why: str = "") -> Problem:
    reason = f" ({why})" if why else ""
    message = f"a model is chosen by text, and there is none here: name a model{reason}"
    return Problem(400, message, code="no_text")
