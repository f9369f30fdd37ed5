"""Read the settings of a sentence-transformers folder: pooling and longest input.

``modules.json`` lists the modules that produce a vector. Pooling is read here. Normalisation to
length 1 makes no difference to experts: apart from its ε, the bus norm of h and of h / ‖h‖ is the
same. Any other module that changes vectors is refused by name, because experts would then read
different vectors than users of the folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...registry.errors import UsageError
from ..backbones.encoder import Pooling

MODES: dict[str, Pooling] = {"cls": "first", "lasttoken": "last", "mean": "mean"}
"""Pooling modes of sentence-transformers → the equivalent here."""

HINT = "Give --pooling, if you want the model without that."


def longest_input(folder: Path) -> int | None:
    """Return the longest input of the model in tokens, if the folder specifies it."""
    length = (_read(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def pooling_of(folder: Path) -> Pooling | None:
    """Return the pooling; None if the folder is not one of sentence-transformers.

    Raises:
        UsageError: If its vectors are computed in a way that is not supported here.
    """
    modules = _read(folder / "modules.json")
    if modules is None:
        return None
    found: Pooling = "mean"
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            found = _mode(folder / str(module.get("path", "")) / "config.json")
        elif kind not in {"Transformer", "Normalize"}:
            raise _refused(folder, "modules of an encoder, pooling and normalising", kind)
    config = _read(folder / "config_sentence_transformers.json") or {}
    prompt = (config.get("prompts") or {}).get(config.get("default_prompt_name") or "")
    if prompt:
        raise _refused(folder, "no prompt before every text", repr(prompt))
    return found


def _mode(file: Path) -> Pooling:
    """Return the single pooling mode, from either format of the settings."""
    config = _read(file) or {}
    given = config.get("pooling_mode")
    prefix, suffixes = "pooling_mode_", ("_token", "_tokens")
    flags = {k.removeprefix(prefix) for k, on in config.items() if k.startswith(prefix) and on}
    for suffix in suffixes:
        flags = {k.removesuffix(suffix) for k in flags}
    modes = [given] if isinstance(given, str) else sorted(flags)
    if len(modes) != 1 or modes[0] not in MODES:
        raise _refused(file.parent, "pooling " + ", ".join(MODES), ", ".join(modes) or "none")
    return MODES[modes[0]]


def _read(file: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or not valid JSON."""
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _refused(folder: Path, expected: str, found: str) -> UsageError:
    who = f"the sentence encoder in {folder}"
    return UsageError(who, expected=expected, found=found, hint=HINT)
