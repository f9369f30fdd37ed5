from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from redhost.registry.package.safetensors_check import (
    MAX_HEADER,
    TensorInfo,
    check_finite,
    check_tensors,
    magnitude,
    reaches,
    read_floats,
    read_header,
    relabel,
    sha256_hex,
    show,
    truncation,
)

REBUILD = "Rebuild the package and install it again."
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
    data = file({"U": tensor(1, 2), "V": tensor(1, start=8)}, bytes(12))
    base = len(data) - 12
    assert read_header(data).value == {
        "U": TensorInfo("F32", (1, 2), base, base + 8),
        "V": TensorInfo("F32", (1,), base + 8, base + 12),
    }


def test_reads_what_safetensors_writes() -> None:
    header = read_header(GOOD).unwrap("it")
    assert {name: info.shape for name, info in header.items()} == {"U": (2, 3), "n": (2,)}


BAD = {
    "empty": b"",
    "short": b"\0" * 7,
    "no header": bytes(8),
    "header beyond the file": file(b"{}", size=99),
    "huge header": file(b"{}", size=2**63),
    "white space first": file(b' {"U":1}'),
    "not an object": file(b"[]"),
    "not JSON": file(b"{nope"),
    "not UTF-8": file(b'{"\xff": 1}'),
    "deep": file(b'{"a":' + b"[" * 50_000),
    "duplicate": file(b'{"U":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"U":{}}'),
    "duplicate inside": file(
        b'{"U":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    ),
    "long duplicate": file(b'{"%b":0,"%b":0}' % (b"x" * 99, b"x" * 99)),
    "name": file({"../x": tensor(1)}, bytes(4)),
    "long name": file({"x" * 201: tensor(1)}, bytes(4)),
    "final newline in a name": file({"x\n": tensor(1)}, bytes(4)),
    "dtype": file({"U": tensor(1, dtype="F64")}, bytes(4)),
    "nine dimensions": file({"U": tensor(*[1] * 9)}, bytes(4)),
    "bool": file(b'{"U":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', bytes(4)),
    "negative": file(b'{"U":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}'),
    "float": file(b'{"U":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', bytes(4)),
    "size past 2^48": file(b'{"U":{"dtype":"F32","shape":[281474976710656],"data_offsets":[0,0]}}'),
    "one offset": file(b'{"U":{"dtype":"F32","shape":[0],"data_offsets":[0]}}'),
    "three offsets": file(b'{"U":{"dtype":"F32","shape":[0],"data_offsets":[0,0,0]}}'),
    "no object": file({"U": [1]}),
    "metadata that is a list": file({"__metadata__": []}),
    "wrong size": file({"U": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
    "wrong size further on": file(
        {"U": tensor(1), "V": {"dtype": "F32", "shape": [2], "data_offsets": [4, 8]}}, bytes(8)
    ),
    "extra key": file({"U": {**tensor(1), "more": 1}}, bytes(4)),
    "gap": file({"U": tensor(1), "V": tensor(1, start=8)}, bytes(12)),
    "overlap": file({"U": tensor(2), "V": tensor(1, start=4)}, bytes(8)),
    "trailing data": file({"U": tensor(1)}, bytes(5)),
    "cut": file({"U": tensor(1)}, bytes(3)),
    "metadata": file({"__metadata__": {"a": 1}}),
    "too many": file({f"t{i}": tensor(0) for i in range(4097)}),
    "too many, and no tensors": file({"__metadata__": {}} | {f"t{i}": {} for i in range(4097)}),
}


REASONS = {
    "empty": "expected at least 8 bytes, found 0",
    "short": "expected at least 8 bytes, found 7",
    "no header": "expected a header that begins with '{', found b''",
    "header beyond the file": "expected a header of 99 bytes, found 2",
    "huge header": "expected a header of at most 1,048,576 bytes, found 9,223,372,036,854,775,808",
    "white space first": "expected a header that begins with '{', found b' '",
    "not an object": "expected a header that begins with '{', found b'['",
    "not JSON": "expected a JSON object, found Expecting property name",
    "not UTF-8": "expected a JSON object, found 'utf-8' codec can't decode byte 0xff",
    "deep": "expected a JSON object, found maximum recursion depth exceeded",
    "duplicate": "expected a JSON object, found the key 'U' stands twice",
    "duplicate inside": "expected a JSON object, found the key 'dtype' stands twice",
    "long duplicate": f"expected a JSON object, found the key '{'x' * 80}' stands twice",
    "name": "expected names of letters, digits, '_' and '.', found '../x'",
    "long name": "expected names of letters, digits, '_' and '.', found 'xxxxxxxxxxxx...xxxxxxxx",
    "final newline in a name": "expected names of letters, digits, '_' and '.', found 'x\\n'",
    "dtype": "expected U of F32, F16, BF16, I64, found 'F64'",
    "nine dimensions": "expected U of at most 8 dimensions, found [1, 1, 1, 1, 1, 1, ...]",
    "bool": "expected U of at most 8 dimensions, found [True]",
    "negative": "expected U of at most 8 dimensions, found [-1]",
    "float": "expected U of at most 8 dimensions, found [1.0]",
    "size past 2^48": "expected U of at most 8 dimensions, found [281474976710656]",
    "one offset": "expected two offsets for U, found [0]",
    "three offsets": "expected two offsets for U, found [0, 0, 0]",
    "wrong size": "expected 8 bytes for U, found 4",
    "wrong size further on": "expected 8 bytes for V, found 4",
    "extra key": "expected U with dtype, shape and data_offsets, found {'data_offsets': [0, 4],",
    "no object": "expected U with dtype, shape and data_offsets, found [1]",
    "gap": "expected V at offset 4, found 8",
    "overlap": "expected V at offset 8, found 4",
    "trailing data": "expected a file of 73 bytes, found 74",
    "cut": "expected a file of 73 bytes, found 72",
    "metadata": "expected __metadata__ of strings, found {'a': 1}",
    "metadata that is a list": "expected __metadata__ of strings, found []",
    "too many": "expected at most 4,096 tensors, found more",
    "too many, and no tensors": "expected at most 4,096 tensors, found more",
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name: str) -> None:
    (found,) = read_header(BAD[name]).violations
    assert (found.code, found.hint) == ("weights_header", REBUILD)
    assert found.reason.startswith(f"header: {REASONS[name]}")


def test_the_limits_themselves_are_let_in() -> None:
    for header, body in (
        ({f"t{i}": tensor(0) for i in range(4096)}, b""),
        ({"x" * 200: tensor(1)}, bytes(4)),
        ({"U": tensor(*[1] * 8)}, bytes(4)),
        ({"__metadata__": {"a": "b"}, "U": tensor(1)}, bytes(4)),
    ):
        assert read_header(file(header, body)).value is not None
    padded = json.dumps({"U": tensor(1)}).encode().ljust(MAX_HEADER)
    assert read_header(file(padded, bytes(4))).value is not None


MANY = "at most 4,096 tensors"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{" + b'"a":{},' * (MAX_HEADER // 8), MANY),
        (b"{" + b",".join(b'"%06d":1' % i for i in range(MAX_HEADER // 12)) + b"}", MANY),
        (b'{"a":' + b"[" * (MAX_HEADER - 10), "a JSON object"),
        (b'{"a":[' + b"1," * (MAX_HEADER // 2 - 10) + b"1]}", MANY),
        (b'{"a":' + b"9" * (MAX_HEADER - 10) + b"}", "a JSON object"),
    ],
    ids=["tensors", "keys", "deep", "list", "number"],
)
def test_refuses_a_large_bad_header(text: bytes, expected: str) -> None:
    """Those of many parts unread: their bytes are counted, and no JSON is made of them."""
    (found,) = read_header(file(text)).violations
    assert found.expected == expected


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
    assert [v.reason for v in found] == [
        "V: expected (1), found no such tensor",
        "n: expected no such tensor, found (2)",
        "U: expected (3, 2) of F32, F16 or BF16, found (2, 3) of F32",
    ]
    assert {v.hint for v in found} == {
        "Correct form, rank, width or labels in the manifest, or save the weights again."
    }


def test_whole_numbers_are_those_that_are_named() -> None:
    shapes: dict[str, tuple[int, ...]] = {"U": (2, 3), "n": (2,)}
    assert check_tensors(GOOD, shapes, integers={"n"}) == ()
    (found,) = check_tensors(GOOD, shapes)
    assert found.reason == "n: expected (2) of F32, F16 or BF16, found (2) of I64"
    (found,) = check_tensors(GOOD, shapes, integers={"n", "U"})
    assert found.reason == "U: expected (2, 3) of I64, found (2, 3) of F32"


def test_a_bad_header_is_all_that_is_stated() -> None:
    (found,) = check_tensors(b"", {"U": (2, 3)})
    assert found.code == "weights_header"


def test_every_tensor_that_is_not_finite_is_named() -> None:
    data = save(
        {n: np.array([1.0, v], "f4") for n, v in {"c": 1, "b": np.inf, "a": np.nan}.items()}
    )
    header = read_header(data).unwrap("it")
    found = check_finite(data, header)
    assert [v.reason for v in found] == [
        "a: expected finite numbers, found NaN or infinity",
        "b: expected finite numbers, found NaN or infinity",
    ]
    assert {v.hint for v in found} == {
        "Write the file again: with such numbers no answer would be usable."
    }


def test_whole_numbers_of_any_bits_are_finite() -> None:
    data = save({"n": np.array([-1], "i8")})  # all ones, as an infinity's exponent is
    assert check_finite(data, read_header(data).unwrap("it")) == ()


def test_a_header_elsewhere_is_reported_of_that_file() -> None:
    (found,) = read_header(b"").violations
    (other,) = relabel((found,), role="canary", file="canary.safetensors")
    assert (other.code, other.field) == ("canary_header", "canary.safetensors header")
    assert other.reason == "canary.safetensors header: expected at least 8 bytes, found 0"
    (again,) = relabel((other,), role="weights", file="x")
    assert again.code == "canary_header"  # only the role of weights is another's to take


def test_shapes_and_digests_as_people_read_them() -> None:
    assert (show(()), show((3,)), show((32, 128))) == ("()", "(3)", "(32, 128)")
    assert sha256_hex(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


HEADER = 8 + int.from_bytes(GOOD[:8], "little")


@pytest.mark.parametrize("size", [0, 5, 7, 8, 40, HEADER - 1, HEADER, len(GOOD) - 1])
def test_tells_a_cut_file_from_a_changed_one(size: int) -> None:
    (cut,) = truncation(GOOD[:size])
    assert cut is not None
    wanted = 8 if size < 8 else HEADER if size < HEADER else len(GOOD)
    assert (cut.code, cut.hint) == ("weights_header", REBUILD)
    assert cut.reason == (
        f"size: expected {wanted:,} bytes, found {size:,} bytes: the file is cut short"
    )
    assert truncation(GOOD) == ()
    assert truncation(GOOD[:-1] + b"x") == ()


def test_what_announces_no_length_was_not_cut() -> None:
    for whole in (file({}), file(b"{nope"), file(b"{}", size=MAX_HEADER + 1), b"\xff" * 99):
        assert truncation(whole) == ()
    (cut,) = truncation(file(b"{}", size=MAX_HEADER))
    assert cut is not None and cut.expected == "1,048,584 bytes"


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, len(GOOD) - 1), data=st.binary(min_size=0, max_size=8))
def test_mutated_bytes_never_crash_and_the_library_refuses_none_that_pass(
    place: int, data: bytes
) -> None:
    mutant = GOOD[:place] + data + GOOD[place + len(data) :]
    if read_header(mutant).value is not None:
        safetensors.deserialize(mutant)
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
    assert found.value is None or all(
        0 <= i.start <= i.end <= len(data) for i in found.value.values()
    )
    check_tensors(data, {"U": (1,)})


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("worst", [-3.0, 1.5, 0.0, -60000.0, 2.0**-24])
def test_the_largest_magnitude_is_read_from_the_bits(dtype: str, worst: float) -> None:
    numbers = np.array([[worst, worst / 4], [0.0, -worst / 2]], "f4")
    bits = numbers.astype("f2" if dtype == "F16" else "f4").tobytes()
    if dtype == "BF16":
        numbers = (numbers.view("<u4") >> 16 << 16).view("f4")
        bits = (numbers.view("<u4") >> 16).astype("<u2").tobytes()
    data = file({"U": {"dtype": dtype, "shape": [2, 2], "data_offsets": [0, len(bits)]}}, bits)
    info = read_header(data).unwrap("it")["U"]
    assert magnitude(data, info) == float(np.abs(read_floats(data, info)).max())
    if dtype != "F16":
        assert (read_floats(data, info) == numbers).all()


BOUNDS = (5e-324, 2.0**-24, 0.02, 0.499, 0.5, 1.0, 65504.0, 7e4, 524_288.0, 1e6, 3.4e38, math.inf)
SPECIAL = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}


def of_bits(bits: np.ndarray, dtype: str) -> tuple[bytes, TensorInfo]:
    """Return a file with one tensor of these bits, and its place."""
    body = bits.astype(SPECIAL[dtype]).tobytes()
    data = file({"U": {"dtype": dtype, "shape": [len(bits)], "data_offsets": [0, len(body)]}}, body)
    return data, read_header(data).unwrap("it")["U"]


@pytest.mark.parametrize("dtype", SPECIAL)
def test_every_kind_of_number_reaches_what_it_reaches(dtype: str) -> None:
    """Around each bound, zero, subnormal, infinite and not a number; without numpy's comparison."""
    sign = 1 << (31 if dtype == "F32" else 15)
    firsts = [b << (24 if dtype == "F32" else 8) for b in range(128)]
    for bits in {x & ~sign for first in firsts for x in (first, first + 1, abs(first - 1))}:
        for signed in (bits, bits | sign):
            data, info = of_bits(np.array([0, signed, 0]), dtype)
            value = float(abs(read_floats(data, info)[1]))
            for bound in BOUNDS:
                expected = value >= bound or math.isnan(value)
                assert reaches(data, info, bound) == expected, (dtype, hex(signed), bound)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(SPECIAL)),
    st.lists(st.integers(0, 2**32 - 1), max_size=5),
    st.floats(min_value=5e-324) | st.sampled_from(BOUNDS),
)
def test_what_is_reached_is_what_the_largest_magnitude_reaches(
    dtype: str, bits: list[int], bound: float
) -> None:
    most = 2**32 if dtype == "F32" else 2**16
    data, info = of_bits(np.array(bits, "u8") % most, dtype)
    assert reaches(data, info, bound) == (bool(bits) and magnitude(data, info) >= bound)


def test_a_long_tensor_is_searched_to_its_end() -> None:
    for place in (0, 2**20 - 1, 2**20, 2**21 + 4):
        numbers = np.zeros(2**21 + 5, "<f4")
        numbers[place] = -1e7
        data, info = of_bits(numbers.view("<u4"), "F32")
        assert reaches(data, info, 1e6)
        assert not reaches(data, info, 2e7)
