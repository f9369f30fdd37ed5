from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from redhost.registry.integrity import (
    MAX_HEADER,
    check_tensors,
    read_header,
    truncation,
)
from redhost.registry.violations import Violation

GOOD = save({"U": np.ones((2, 3), "f4"), "n": np.zeros(2, "i8")})


def file(header: Any, body: bytes = b"", *, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def tensor(*shape: int, start: int = 0, dtype: str = "F32") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": shape,
        "data_offsets": [start, start + 4 * int(np.prod(shape))],
    }


def test_golden_bytes() -> None:
    data = file({"U": tensor(1, 2)}, bytes(8))
    header = read_header(data)
    assert not isinstance(header, Violation)
    assert (header["U"].shape, header["U"].end) == ((1, 2), len(data))


def test_reads_what_safetensors_writes() -> None:
    header = read_header(GOOD)
    assert not isinstance(header, Violation)
    assert {name: info.shape for name, info in header.items()} == {"U": (2, 3), "n": (2,)}


BAD = {
    "empty": b"",
    "short": b"\0" * 7,
    "header beyond the file": file(b"{}", size=99),
    "huge header": file(b"{}", size=2**63),
    "white space first": file(b' {"U":1}'),
    "not an object": file(b"[]"),
    "not JSON": file(b"{nope"),
    "not UTF-8": file(b'{"\xff": 1}'),
    "deep": file(b'{"a":' * 2000),
    "duplicate": file(b'{"U":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"U":{}}'),
    "duplicate inside": file(
        b'{"U":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    ),
    "name": file({"../x": tensor(1)}, bytes(4)),
    "long name": file({"x" * 201: tensor(1)}, bytes(4)),
    "final newline in a name": file({"x\n": tensor(1)}, bytes(4)),
    "dtype": file({"U": tensor(1, dtype="F64")}, bytes(4)),
    "nine dimensions": file({"U": tensor(*[1] * 9)}, bytes(4)),
    "bool": file(b'{"U":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', bytes(4)),
    "negative": file(b'{"U":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}'),
    "float": file(b'{"U":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', bytes(4)),
    "wrong size": file({"U": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
    "extra key": file({"U": {**tensor(1), "more": 1}}, bytes(4)),
    "gap": file({"U": tensor(1), "V": tensor(1, start=8)}, bytes(12)),
    "overlap": file({"U": tensor(2), "V": tensor(1, start=4)}, bytes(8)),
    "trailing data": file({"U": tensor(1)}, bytes(5)),
    "cut": file({"U": tensor(1)}, bytes(3)),
    "metadata": file({"__metadata__": {"a": 1}}),
    "too many": file({f"t{i}": tensor(0) for i in range(4097)}),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_refuses(data: bytes) -> None:
    found = read_header(data)
    assert isinstance(found, Violation)
    assert found.code == "weights_header"
    assert found.hint


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b'"a":{},' * (MAX_HEADER // 8),
        b"{" + b",".join(b'"%06d":1' % i for i in range(MAX_HEADER // 12)) + b"}",
        b'{"a":' + b"[" * (MAX_HEADER - 10),
        b'{"a":[' + b"1," * (MAX_HEADER // 2 - 10) + b"1]}",
        b'{"a":' + b"9" * (MAX_HEADER - 10) + b"}",
    ],
    ids=["tensors", "keys", "deep", "list", "number"],
)
def test_refuses_a_large_bad_header(text: bytes) -> None:
    assert isinstance(read_header(file(text)), Violation)


def test_decides_on_64_mib_with_64_mib_more() -> None:
    data = save({"U": np.ones((2**22 - 8, 4), "f4")})
    tracemalloc.start()
    assert check_tensors(data, {"U": (2**22 - 8, 4)}) == ()
    assert tracemalloc.get_traced_memory()[1] <= 64 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f2", "bf16"])
def test_finds_one_value_that_is_not_finite(value: float, dtype: str) -> None:
    array = np.ones(2**20 + 3, "f4")
    array[-1] = value
    if dtype == "bf16":
        bits = (array.view("u4") >> 16).astype("u2").tobytes()
        entry = {"dtype": "BF16", "shape": [array.size], "data_offsets": [0, len(bits)]}
        data = file({"U": entry}, bits)
    else:
        data = save({"U": array.astype(dtype)})
    assert [v.code for v in check_tensors(data, {"U": array.shape})] == ["weights_not_finite"]


def test_wants_exactly_the_names_shapes_and_floats() -> None:
    found = check_tensors(GOOD, {"U": (3, 2), "V": (1,)})
    assert [(v.code, v.field) for v in found] == [
        ("weights_tensors", "V"),
        ("weights_tensors", "n"),
        ("weights_tensors", "U"),
    ]
    assert found[2].reason == "U: expected (3, 2) of F32, F16 or BF16, found (2, 3) of F32"


@pytest.mark.parametrize("size", [0, 5, 40, len(GOOD) - 1])
def test_tells_a_cut_file_from_a_changed_one(size: int) -> None:
    cut = truncation(GOOD[:size])
    assert cut is not None
    assert "cut short" in cut.found
    assert truncation(GOOD) is None
    assert truncation(GOOD[:-1] + b"x") is None


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, len(GOOD) - 1), data=st.binary(min_size=0, max_size=8))
def test_mutated_bytes_never_crash(place: int, data: bytes) -> None:
    mutant = GOOD[:place] + data + GOOD[place + len(data) :]
    read_header(mutant)
    truncation(mutant)
    check_tensors(mutant, {"U": (2, 3)})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    header=st.dictionaries(
        st.sampled_from(["U", "__metadata__", "data_offsets", "x"]),
        JSON
        | st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON})
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "I64"]),
                "shape": st.lists(st.integers(-1, 2**60), max_size=9),
                "data_offsets": st.lists(st.integers(-1, 2**60), max_size=3),
            }
        ),
    ),
    body=st.binary(max_size=16),
)
def test_any_json_header_never_crashes(header: dict[str, Any], body: bytes) -> None:
    data = file(header, body)
    found = read_header(data)
    assert isinstance(found, Violation) or all(
        0 <= i.start <= i.end <= len(data) for i in found.values()
    )
    check_tensors(data, {"U": (1,)})
