"""Check that bytes match a manifest: digests, and the safetensors header, parsed here.

safetensors itself is memory-safe but lenient (duplicate names, leading white space, names with
``../``, a million empty tensors), so the header is checked here before anything else reads it.

File layout: 8 bytes little-endian N, N bytes of JSON, then the tensors, back to back.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from .checked import Refused, Violation, checked, unique_keys

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_FILE = 64 * 2**20
MAX_HEADER = 2**20
MAX_TENSORS = 4096
MAX_DIMENSIONS = 8
LARGEST = 1e6
"""The largest number in an expert: products of a few of these stay finite."""
DTYPES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}
"""Bytes per element of every accepted dtype."""

_FLOATS, _INTEGERS = ("F32", "F16", "BF16"), ("I64",)
_BITS = {
    "F32": ("<u4", 0x7FFFFFFF, 0x7F800000),
    "F16": ("<u2", 0x7FFF, 0x7C00),
    "BF16": ("<u2", 0x7FFF, 0x7F80),
}
"""Dtype → its bits as an integer, all of them but the sign, and those of infinity."""
_FIRST = {"F32": (">f", 3e38), "F16": (">e", 65504.0), "BF16": (">f", 3e38)}
"""Dtype → how `struct` writes a number that begins with the same byte, and up to which one."""
_KINDS = {_FLOATS: "F32, F16 or BF16", _INTEGERS: "I64"}
_NAME = re.compile(r"[A-Za-z0-9_.]{1,200}")
_ENDS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,15}\s*,\s*(\d{1,15})\s*\]')
_KEYS = {"dtype", "shape", "data_offsets"}
_REBUILD = "Rebuild the package and install it again."
_MAX_SIZE = 2**48
_COMMAS = 2 * MAX_DIMENSIONS  # more than one tensor's entry has
_LENGTH = 8  # bytes of the number that precedes the header
_CHUNK = 2**20  # elements checked at a time: limits memory to a few MiB


class TensorInfo(Struct, frozen=True):
    """The place of one tensor in a file.

    Attributes:
        dtype: A key of `DTYPES`.
        shape: Its dimensions.
        start: Offset of the first byte in the file.
        end: Offset after the last byte in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class _HeaderError(Refused):
    """The header violates a rule."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(Violation("weights_header", "header", expected, found, _REBUILD))


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of some bytes as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


@checked
def read_header(data: bytes) -> Mapping[str, TensorInfo]:
    """Read and check a safetensors header without reading the tensors.

    Args:
        data: The whole file.

    Returns:
        Name → place of every tensor, in the header's order; or the violation.
    """
    raw, base = _header_json(data)
    tensors = {name: _tensor(name, raw[name], base) for name in raw if name != "__metadata__"}
    metadata = raw.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _HeaderError("__metadata__ of strings", reprlib.repr(metadata))
    _check_layout(tensors, base, len(data))
    return tensors


def truncation(data: bytes) -> tuple[Violation, ...]:
    """Distinguish a truncated file from a changed one; empty if it is complete.

    A truncated file has a wrong digest too, but its header gives the length it should have.
    """
    length = _LENGTH
    if len(data) >= length:
        size = int.from_bytes(data[:_LENGTH], "little")
        if size > MAX_HEADER:
            return ()  # no valid header is this long: this was never such a file
        length += size
        if len(data) >= length:
            # Not parsed, because a truncated or changed header may not be JSON.
            length += max(map(int, _ENDS.findall(data[_LENGTH:length])), default=0)
    if len(data) >= length:
        return ()
    return (
        Violation(
            "weights_header",
            "size",
            f"{length:,} bytes",
            f"{len(data):,} bytes: the file is cut short",
            _REBUILD,
        ),
    )


def check_tensors(
    data: bytes,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    integers: Collection[str] = (),
    largest: float = math.inf,
) -> tuple[Violation, ...]:
    """Check that a file holds exactly these tensors, as finite floats.

    Args:
        data: The whole safetensors file.
        shapes: Name → shape of every tensor that the contract requires.
        integers: Names of tensors that are integers (I64) instead.
        largest: The largest allowed absolute value of a float.

    Returns:
        All violations; empty if there are none.
    """
    read = read_header(data)
    if read.value is None:
        return read.violations
    header = read.value
    missing, extra = sorted(shapes.keys() - header.keys()), sorted(header.keys() - shapes.keys())
    faults = [
        *((name, show(shapes[name]), "no such tensor") for name in missing),
        *((name, "no such tensor", show(header[name].shape)) for name in extra),
    ]
    for name in sorted(header.keys() & shapes.keys()):
        info = header[name]
        kinds = _INTEGERS if name in integers else _FLOATS
        if info.shape != shapes[name] or info.dtype not in kinds:
            expected = f"{show(shapes[name])} of {_KINDS[kinds]}"
            faults.append((name, expected, f"{show(info.shape)} of {info.dtype}"))
    hint = "Correct form, rank, width or labels in the manifest, or save the weights again."
    violations = tuple(Violation("weights_tensors", *fault, hint) for fault in faults)
    return violations or check_finite(data, header, largest=largest)


def check_finite(
    data: bytes, header: Mapping[str, TensorInfo], *, largest: float = math.inf
) -> tuple[Violation, ...]:
    """Return a violation for each float tensor with NaN, an infinity, or more than `largest`."""
    hint = "Write the file again: with such numbers no answer would be usable."
    code, expected = "weights_range", f"numbers of at most {largest:g}"
    violations = []
    floats = sorted(name for name, info in header.items() if info.dtype in _FLOATS)
    for name in (name for name in floats if reaches(data, header[name], largest)):
        maximum = magnitude(data, header[name])
        if not math.isfinite(maximum):
            fault = ("weights_not_finite", name, "finite numbers", "NaN or infinity", hint)
            violations.append(Violation(*fault))
        elif maximum > largest:
            violations.append(Violation(code, name, expected, f"{maximum:.3g}", hint))
    return tuple(violations)


def show(shape: tuple[int, ...]) -> str:
    """Return a shape as readable text: ``(32, 128)``."""
    return f"({', '.join(map(str, shape))})"


def relabel(violations: Iterable[Violation], *, role: str, file: str) -> tuple[Violation, ...]:
    """Return violations of tensors with the codes of another file, e.g. ``canary_header``."""
    return tuple(
        replace(v, code=v.code.replace("weights_", f"{role}_"), field=f"{file} {v.field}")
        for v in violations
    )


def _header_json(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the decoded header and the offset at which the tensors begin."""
    if len(data) < _LENGTH:
        raise _HeaderError(f"at least {_LENGTH} bytes", f"{len(data)}")
    size = int.from_bytes(data[:_LENGTH], "little")
    if size > MAX_HEADER:
        raise _HeaderError(f"a header of at most {MAX_HEADER:,} bytes", f"{size:,}")
    text = data[_LENGTH : _LENGTH + size]
    if len(text) < size:
        raise _HeaderError(f"a header of {size:,} bytes", f"{len(text):,}")
    if text[:1] != b"{":  # so that json returns an object
        raise _HeaderError("a header that begins with '{'", repr(text[:1]))
    # Counting first: parsing a mebibyte of tiny tensors alone would break the 50 ms limit.
    counts = (text.count(b'"data_offsets"'), text.count(b"{") - 2, text.count(b",") // _COMMAS)
    if max(counts) > MAX_TENSORS:
        raise _HeaderError(f"at most {MAX_TENSORS:,} tensors", "more")
    try:
        raw: dict[str, Any] = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as e:
        raise _HeaderError("a JSON object", str(e)) from e
    return raw, _LENGTH + size


def _tensor(name: str, raw: object, base: int) -> TensorInfo:
    if not _NAME.fullmatch(name):
        raise _HeaderError("names of letters, digits, '_' and '.'", reprlib.repr(name))
    if not isinstance(raw, dict) or raw.keys() != _KEYS:
        raise _HeaderError(f"{name} with dtype, shape and data_offsets", reprlib.repr(raw))
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _HeaderError(f"{name} of {', '.join(DTYPES)}", reprlib.repr(dtype))
    if not _naturals(shape, most=MAX_DIMENSIONS):
        raise _HeaderError(f"{name} of at most {MAX_DIMENSIONS} dimensions", reprlib.repr(shape))
    if not _naturals(offsets, most=2) or not offsets[1:]:
        raise _HeaderError(f"two offsets for {name}", reprlib.repr(offsets))
    begin, end = offsets
    if end - begin != (size := math.prod(shape) * DTYPES[dtype]):
        raise _HeaderError(f"{size:,} bytes for {name}", f"{end - begin:,}")
    return TensorInfo(dtype, tuple(shape), base + begin, base + end)


def _naturals(value: object, *, most: int) -> bool:
    """Return whether a value is a short list of sizes (True is an int in Python, but no size)."""
    if not isinstance(value, list) or len(value) > most:
        return False
    return all(type(x) is int and 0 <= x < _MAX_SIZE for x in value)


def _check_layout(tensors: Mapping[str, TensorInfo], base: int, size: int) -> None:
    """Refuse gaps, overlaps and trailing data: every byte belongs to exactly one tensor."""
    place = base
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != place:
            raise _HeaderError(f"{name} at offset {place - base:,}", f"{info.start - base:,}")
        place = info.end
    if place != size:
        raise _HeaderError(f"a file of {place:,} bytes", f"{size:,}")


def reaches(data: bytes, info: TensorInfo, bound: float) -> bool:
    """Return whether a float tensor has an |x| ≥ `bound`, or NaN.

    The byte with the sign and most of the exponent decides, without numpy, which takes as long to
    import as a hundred experts to read. Only if no such byte exceeds the bound's own, and some are
    equal to it, are all bits compared.
    """
    width, (code, most) = DTYPES[info.dtype], _FIRST[info.dtype]
    byte = struct.pack(code, min(bound, most))[0]  # NaN and infinity come after `most`
    less, equal = bytes((*range(byte), *range(128, 128 + byte))), bytes((byte, 128 + byte))
    for place in range(info.start, info.end, _CHUNK * width):
        end = min(place + _CHUNK * width, info.end)
        if more := data[place + width - 1 : end : width].translate(None, less):
            return bool(more.strip(equal)) or magnitude(data, info) >= bound
    return False


def magnitude(data: bytes, info: TensorInfo) -> float:
    """Return the largest |x| of a float tensor, infinity if it has NaN; 0 if it is empty."""
    import numpy as np

    # Without the sign bit, floats sort like their bits as integers; infinity and NaN, whose
    # exponent is all ones, come last.
    kind, unsigned, infinity = _BITS[info.dtype]
    bits = np.frombuffer(data, kind, math.prod(info.shape), info.start)
    parts = (bits[place : place + _CHUNK] for place in range(0, len(bits), _CHUNK))
    worst = max((int((part & unsigned).max()) for part in parts), default=0)
    if worst >= infinity:
        return math.inf
    return float(_as_floats(np.array([worst], kind), info.dtype)[0])


def read_floats(data: bytes, info: TensorInfo) -> NDArray[np.float32]:
    """Return a float tensor of a checked file, in its shape."""
    import numpy as np

    bits = np.frombuffer(data, _BITS[info.dtype][0], math.prod(info.shape), info.start)
    return _as_floats(bits, info.dtype).reshape(info.shape)


def _as_floats(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    import numpy as np

    if dtype == "BF16":  # the first half of a float32
        bits, dtype = bits.astype("<u4") << 16, "F32"
    return bits.view("<f4" if dtype == "F32" else "<f2").astype(np.float32, copy=False)
