"""An adapter's two files without torch: what is read of them, and what is refused, by name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redhost_peft.adapter_targets import Targets
from redhost_peft.folder import read_folder
from redhost_peft.peft_adapter import (
    CONFIG,
    WEIGHTS,
    check_targets,
    parse_config,
    read_adapter,
)
from redhost_peft.target_patterns import Ends
from safetensors.numpy import save

from redhost.registry.errors import IntegrityError, RedhostError
from redhost.registry.package.safetensors_check import LARGEST

from .peft_files import LINEARS, MODULES, START, D, R, Tensors, bias, config, files, tensors


def first(made: Tensors) -> str:
    return next(iter(made))


def changed(change: Callable[[Tensors], object]) -> Tensors:
    made = tensors()
    change(made)
    return made


def with_value(value: float) -> Tensors:
    return changed(lambda t: t[first(t)].__setitem__((0, 0), value))


def with_dtype(kind: str) -> Tensors:
    return changed(lambda t: t.update({first(t): t[first(t)].astype(kind)}))


def test_a_sound_adapter_is_read() -> None:
    read = read_adapter(*files()).unwrap("it")
    assert [*read.layers] == sorted(MODULES) and read.rank == R and not read.biases
    assert {x.scale for x in read.layers.values()} == {2.0}
    assert not [*check_targets(read, LINEARS, backbone="tiny")]


def test_a_prefix_of_the_model_it_was_trained_on_is_taken_off() -> None:
    named = {n.replace(START, f"{START}bert."): t for n, t in tensors().items()}
    read = read_adapter(*files(named)).unwrap("it")
    assert read.prefix(LINEARS) == "bert." and not [*check_targets(read, LINEARS, backbone="tiny")]


def test_scales_follow_rank_alpha_and_their_patterns() -> None:
    made = tensors(MODULES[:2]) | tensors(MODULES[2:], r=9)
    ninth = {"1.attention.self.query": 9, r"^encoder\.layer.1.attention.self.value": 9}
    options: dict[str, Any] = {"use_rslora": True, "rank_pattern": ninth}
    options["alpha_pattern"] = {"query": 30}
    read = read_adapter(*files(made, **options)).unwrap("it")
    found = {n: (x.rank, x.scale) for n, x in read.layers.items()}
    assert found == dict(zip(MODULES, [(4, 15), (4, 4), (9, 10), (9, 8 / 3)], strict=True))


SAVES: dict[str, Any] = {"modules_to_save": ["pooler.dense", "Norm"]}

REFUSED: dict[str, tuple[tuple[bytes, bytes], str, str, str]] = {
    "no JSON": ((b"\x80\x04pickle", save(tensors())), "adapter_config", "file", "utf"),
    "a list": ((b"[]", save(tensors())), "adapter_config", "file", "list"),
    "nested too deep": ((b"[" * 100_000, save(tensors())), "adapter_config", "file", ""),
    "a megabyte": ((b" " * 2**21, save(tensors())), "adapter_config", "file", "2,097,152"),
    "a key twice": (
        (b'{"peft_type": "LORA", "peft_type": "LORA"}', save(tensors())),
        "adapter_config",
        "file",
        "stands twice",
    ),
    "another method": (files(peft_type="LOHA"), "adapter_config", "peft_type", "LOHA"),
    "no method": (files(peft_type=...), "adapter_config", "peft_type", "None"),
    "a pattern for modules to save": (
        files(modules_to_save=["(a|a)+"]),
        "adapter_config",
        "modules_to_save",
        "(a|a)+",
    ),
    "modules to save that are no list": (
        files(modules_to_save="classifier"),
        "adapter_config",
        "modules_to_save",
        "classifier",
    ),
    "a saved module of whole numbers": (
        files(tensors() | {f"{START}pooler.dense.weight": np.ones((D, D), "i8")}, **SAVES),
        "weights_tensors",
        "pooler.dense.weight",
        "I64",
    ),
    "a saved module that is infinite": (
        files(tensors() | {f"{START}pooler.dense.weight": np.full((D, D), np.inf, "f4")}, **SAVES),
        "weights_not_finite",
        "pooler.dense.weight",
        "NaN",
    ),
    "a saved module beside a tensor of another": (
        files(tensors() | {f"{START}words.weight": np.ones((2, 2), "f4")}, **SAVES),
        "weights_tensors",
        "words.weight",
        "another",
    ),
    "a method of tomorrow": (files(use_tomorrow=True), "adapter_config", "use_tomorrow", "True"),
    "aLoRA": (
        files(alora_invocation_tokens=[1, 2]),
        "adapter_config",
        "alora_invocation_tokens",
        "1, 2",
    ),
    "target parameters": (
        files(target_parameters=["experts"]),
        "adapter_config",
        "target_parameters",
        "experts",
    ),
    "replicated layers": (
        files(layer_replication=[[0, 2]]),
        "adapter_config",
        "layer_replication",
        "0, 2",
    ),
    "PiSSA": (files(init_lora_weights="pissa"), "adapter_config", "init_lora_weights", "pissa"),
    "LoftQ": (files(init_lora_weights="loftq"), "adapter_config", "init_lora_weights", "loftq"),
    "rank zero": (files(r=0), "adapter_config", "r", "0"),
    "a rank of another type": (files(r="4"), "adapter_config", "r", "4"),
    "true as rank": (files(r=True), "adapter_config", "r", "True"),
    "alpha NaN": (files(lora_alpha=float("nan")), "adapter_config", "lora_alpha", "nan"),
    "alpha infinite": (files(alpha_pattern={"query": 1e300}), "adapter_config", "alpha", "query"),
    "no targets": (files(target_modules=...), "adapter_config", "file", ""),
    "targets of no name": (files(target_modules=""), "adapter_config", "target_modules", "none"),
    "B's bias beside DoRA": (
        files(use_dora=True, lora_bias=True),
        "adapter_config",
        "lora_bias",
        "use_dora True",
    ),
    "B's bias from another start": (
        files(lora_bias=True, init_lora_weights="gaussian"),
        "adapter_config",
        "lora_bias",
        "gaussian",
    ),
    "a key as long as a book": (files(**{"k" * 200_000: 1}), "adapter_config", "kkk", "1"),
    "half a pair": (files(bias="\ud800"), "adapter_config", "file", "surrogates"),
    "half a pair of no key": (files(revision=["\ud800"]), "adapter_config", "file", "surrogates"),
    "UTF-16": (
        (files()[0].decode().encode("utf-16"), files()[1]),
        "adapter_config",
        "file",
        "0xff",
    ),
    "a pattern for ranks": (files(rank_pattern={"(.*)*x": 3}), "adapter_config", "rank", "(.*)*x"),
    "a pattern for scales": (files(alpha_pattern={".*": 3}), "adapter_config", "alpha", ".*"),
    "a pattern for layers": (
        files(layers_to_transform=[1], layers_pattern=["(a|a)+"]),
        "adapter_config",
        "layers_pattern",
        "(a|a)+",
    ),
    "a name of layers that is too long": (
        files(layers_to_transform=[1], layers_pattern=["x" * 65]),
        "adapter_config",
        "layers_pattern",
        "x",
    ),
    "more patterns than modules": (
        files(rank_pattern={f"m{n}": 4 for n in range(5000)}),
        "adapter_config",
        "rank_pattern",
        "5,000",
    ),
    "more targets than names": (
        files(target_modules=["query"] * 50_000),
        "adapter_config",
        "target_modules",
        "50,000",
    ),
    "a pattern that is none": (
        files(target_modules=".*(query|value"),
        "adapter_config",
        "target_modules",
        "(query|value",
    ),
    "a pattern to exclude that is none": (
        files(exclude_modules="[z-a]"),
        "adapter_config",
        "exclude_modules",
        "[z-a]",
    ),
    "layers of a pattern": (
        files(target_modules=".*query", layers_to_transform=[1]),
        "adapter_config",
        "layers_to_transform",
        "pattern",
    ),
    "no tensors": (files({}), "weights_tensors", WEIGHTS, "none"),
    "a tensor of the model": (
        files(tensors() | {f"{START}pooler.weight": np.ones((2, 2), "f4")}),
        "weights_tensors",
        "pooler",
        "another",
    ),
    "an embedding": (
        files(tensors() | {f"{START}words.lora_embedding_A": np.ones((2, 2), "f4")}),
        "weights_tensors",
        "lora_embedding_A",
        "another",
    ),
    "another start": (
        files({n.replace(START, "model."): t for n, t in tensors().items()}),
        "weights_tensors",
        "model.",
        "another",
    ),
    "A without B": (
        files(changed(lambda t: t.pop(f"{START}{MODULES[0]}.lora_B.weight"))),
        "weights_tensors",
        MODULES[0],
        "lora_A.weight",
    ),
    "DoRA without magnitudes": (files(use_dora=True), "weights_tensors", MODULES[0], "lora_A"),
    "magnitudes without DoRA": (
        files(tensors() | {f"{START}{MODULES[0]}.lora_magnitude_vector": np.ones(D, "f4")}),
        "weights_tensors",
        MODULES[0],
        "lora_magnitude_vector",
    ),
    "magnitudes of another size": (
        files(
            tensors()
            | {f"{START}{m}.lora_magnitude_vector": np.ones(D + 1, "f4") for m in MODULES},
            use_dora=True,
        ),
        "weights_tensors",
        MODULES[0],
        f"({D + 1})",
    ),
    "another rank": (files(r=5), "weights_tensors", MODULES[0], "(4, 16)"),
    "a rank of its pattern": (
        files(rank_pattern={"query": 3}),
        "weights_tensors",
        MODULES[0],
        "(4, 16)",
    ),
    "A of one dimension": (
        files(changed(lambda t: t.update({first(t): np.ones(R, "f4")}))),
        "weights_tensors",
        MODULES[0],
        "(4)",
    ),
    "no columns": (
        files(changed(lambda t: t.update({first(t): np.ones((R, 0), "f4")}))),
        "weights_tensors",
        MODULES[0],
        "(4, 0)",
    ),
    "whole numbers": (files(with_dtype("i8")), "weights_tensors", MODULES[0], "I64"),
    "bytes": (files(with_dtype("u1")), "weights_header", "header", ""),
    "NaN": (files(with_value(float("nan"))), "weights_not_finite", MODULES[0], "NaN"),
    "infinity": (files(with_value(float("inf"))), "weights_not_finite", MODULES[0], "NaN"),
    "a number too large": (files(with_value(1e30)), "weights_range", MODULES[0], "1e+30"),
    "a bias nobody learnt": (
        files(tensors() | {f"{START}{MODULES[0]}.base_layer.bias": np.ones(D, "f4")}),
        "weights_tensors",
        "bias",
        MODULES[0],
    ),
    "a bias of another module": (
        files(tensors() | {f"{START}pooler.dense.bias": np.ones(D, "f4")}, bias="lora_only"),
        "weights_tensors",
        "bias",
        "pooler.dense",
    ),
    "a module nobody targets": (
        files(target_modules=["query"]),
        "weights_tensors",
        "value",
        "tensors",
    ),
    "a layer nobody targets": (
        files(layers_to_transform=[0]),
        "weights_tensors",
        "layer.1",
        "tensors",
    ),
    "a pickle": ((files()[0], b"\x80\x04\x95pickle"), "weights_header", "header", ""),
    "a file cut short": ((files()[0], files()[1][:-9]), "weights_header", "header", ""),
    "bytes at the end": ((files()[0], files()[1] + b"x"), "weights_header", "header", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_adapter_is_refused_by_name(case: str) -> None:
    (raw, weights), code, field, found = REFUSED[case]
    started = time.perf_counter()
    wrong = read_adapter(raw, weights).violations
    assert time.perf_counter() - started < 1
    assert {v.code for v in wrong} == {code}
    assert any(field in v.field and found in v.found for v in wrong), wrong
    for v in wrong:
        error = v.error("the adapter")
        assert isinstance(error, RedhostError) and "the adapter" in str(error)
        assert v.expected and v.found and v.hint and len(v.reason) < 1000


def test_biases_are_read_where_the_configuration_says_so() -> None:
    own, other = bias(MODULES[0]), bias("pooler.dense", 7, end="bias")
    read = read_adapter(*files(tensors() | own, bias="lora_only")).unwrap("it")
    assert read.biases == {MODULES[0]: D} and [*read.layers] == sorted(MODULES)
    read = read_adapter(*files(tensors() | own | other, bias="all")).unwrap("it")
    assert read.biases == {MODULES[0]: D, "pooler.dense": 7}
    assert not [
        *check_targets(read, LINEARS, backbone="tiny")
    ]  # no linear module: it is a norm's, say
    wrong = [*check_targets(read, {**LINEARS, "pooler.dense": (8, D)}, backbone="tiny")]
    assert [(v.field, v.expected, v.found) for v in wrong] == [
        (f"{WEIGHTS} pooler.dense bias", "(8)", "(7)")
    ]


WORDED: dict[str, tuple[tuple[bytes, bytes], str, str, str]] = {
    "a bias of another size": (
        files(tensors() | bias(MODULES[0], D + 1), bias="all"),
        f"{WEIGHTS} {MODULES[0]}",
        f"floats, ({D}) beside A and B",
        f"({D + 1}) of F32",
    ),
    "two biases of one module": (
        files(tensors() | bias(MODULES[0]) | bias(MODULES[0], end="bias"), bias="lora_only"),
        f"{WEIGHTS} {START}{MODULES[0]}.bias",
        "one of its kind",
        "two",
    ),
    "a scale too large": (
        files(lora_alpha=1e30),
        f"{CONFIG} lora_alpha",
        f"a number of at most {LARGEST:g}",
        "1e+30 for lora_alpha",
    ),
    "layers beside a pattern": (
        files(target_modules=".*query", layers_to_transform=[0]),
        f"{CONFIG} layers_to_transform",
        "names in target_modules",
        "the pattern '.*query'",
    ),
    "a pattern for a name": (
        files(alpha_pattern={"(a+)+": 3}),
        f"{CONFIG} alpha_pattern",
        "names of modules, or ends of names",
        "'(a+)+'",
    ),
    "a long key twice": (
        (b'{"%s": 1, "%s": 1}' % (b"k" * 99, b"k" * 99), b""),
        f"{CONFIG} file",
        "a JSON object",
        f"the key '{'k' * 80}' stands twice",
    ),
}


@pytest.mark.parametrize("case", WORDED)
def test_what_is_wrong_stands_beside_what_was_expected(case: str) -> None:
    (raw, weights), *worded = WORDED[case]
    wrong = read_adapter(raw, weights).violations
    assert [(v.field, v.expected, v.found) for v in wrong] == [tuple(worded)]
    assert wrong[0].hint


FOREIGN: dict[str, tuple[dict[str, Any], str, str]] = {
    "another architecture": ({"wte": (D, D)}, "linear modules of backbone 'tiny'", MODULES[0]),
    "another width": (
        dict.fromkeys(LINEARS, (D + 1, D)),
        "(17, 16), as in backbone 'tiny'",
        "(16, 16)",
    ),
    "another input": (
        dict.fromkeys(LINEARS, (D, D - 1)),
        "(16, 15), as in backbone 'tiny'",
        "(16, 16)",
    ),
    "fewer blocks": (
        {n: s for n, s in LINEARS.items() if ".1." not in n},
        "linear modules of backbone 'tiny'",
        MODULES[2],
    ),
    "more blocks": (
        LINEARS | {"encoder.layer.2.attention.self.query": (D, D)},
        f"tensors for every module that {CONFIG} targets",
        "encoder.layer.2",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_an_adapter_of_another_backbone_is_refused_by_name(case: str) -> None:
    linears, expected, found = FOREIGN[case]
    read = read_adapter(*files()).unwrap("it")
    wrong = [*check_targets(read, linears, backbone="tiny")]
    assert {v.code for v in wrong} == {"adapter_misfit"}
    assert wrong[0].expected.startswith(expected) and found in wrong[0].found
    assert all(v.hint for v in wrong)


def test_names_of_modules_match_as_pefts_do() -> None:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    names = [*LINEARS, "model.layers.3.mlp.query", "query", "layers.11.query", "a.b.1.experts.2.q"]
    options: list[dict[str, Any]] = [
        {"target_modules": ["query"]},
        {"target_modules": ["dense", "value"], "exclude_modules": ["intermediate.dense"]},
        {"target_modules": ["query"], "exclude_modules": ["self.query"]},
        {"target_modules": ["query", "q"], "layers_to_transform": 1},
        {
            "target_modules": ["query", "q"],
            "layers_to_transform": [0, 3],
            "layers_pattern": "layer",
        },
        {
            "target_modules": ["query"],
            "layers_to_transform": [11],
            "layers_pattern": ["x", "layers"],
        },
        {"target_modules": ["query"], "layers_to_transform": []},
        {"target_modules": r".*\.\d+\.(attention\.self\.(?:query|value)|intermediate\.dense)$"},
        {"target_modules": "query"},
        {"target_modules": "(.*query|.*value)", "exclude_modules": r"encoder\.layer\.[1-9].*"},
    ]
    seen = set()
    for option in options:
        made = LoraConfig(**option)
        mine = parse_config(json.dumps(config(**option)).encode()).unwrap("it")
        for name in names:
            theirs = check_target_module_exists(made, name)
            excluded = type(theirs).__name__ == "_ExcludedModule"
            found = Targets(mine).include(name)
            assert found == (bool(theirs) and not excluded), (option, name)
            seen.add(found)
    assert seen == {True, False}


def test_a_pattern_that_matches_other_modules_is_refused() -> None:
    [wrong, *_] = read_adapter(*files(target_modules=r".*\.query")).violations
    assert (wrong.code, wrong.found) == ("weights_tensors", "tensors")
    assert "self.value" in wrong.field and "only modules that" in wrong.expected
    every = r"encoder\.layer\.\d\..*(query|value|dense)"
    read = read_adapter(*files(target_modules=every)).unwrap("it")
    [wrong] = check_targets(read, LINEARS, backbone="tiny")
    assert wrong.code == "adapter_misfit" and "intermediate.dense" in wrong.found


def test_a_pattern_that_may_take_long_is_not_matched_and_the_tensors_say_which() -> None:
    forever = {"target_modules": "(.*)*x", "exclude_modules": "(a|a)*b"}
    for options in (
        {"target_modules": ".*(query|value)"},
        {"target_modules": "all-linear"},
        forever,
    ):
        read = read_adapter(*files(**options)).unwrap("it")
        assert [*read.layers] == sorted(MODULES)
        assert not [*check_targets(read, LINEARS, backbone="tiny")]


def test_keys_of_ranks_match_as_pefts_do() -> None:
    from peft.utils.other import get_pattern_key

    keys = [
        "query",
        "self.query",
        r"^encoder\.layer.1",
        "q.ery",
        "^a.query",
        "-",
        "1.query",
        r"1\.q",
    ]
    names = [
        *MODULES,
        "a.query",
        "b.a.query",
        "aquery",
        "x.q1ery",
        "11.query",
        "1.q",
        "1xq",
        "query",
    ]
    found = {
        (key, name): get_pattern_key([key], name) == key and key != name
        for key in keys
        for name in names
    }
    mine = {
        (key, name): Ends([key]).first(name) == 0 and key != name for key in keys for name in names
    }
    assert mine == found and {*mine.values()} == {True, False}


def test_many_names_and_many_patterns_take_no_time() -> None:
    modules = [f"layers.{n}.{'query' * 20}" for n in range(500)]
    patterns = {f"{n}.{'query' * 19}querx": 4 for n in range(1000)}
    raw, weights = files(tensors(modules), target_modules=["query" * 20], rank_pattern=patterns)
    started = time.perf_counter()
    assert len(read_adapter(raw, weights).unwrap("it").layers) == 500
    assert time.perf_counter() - started < 5


def test_a_folder_is_read_as_peft_wrote_it(tmp_path: Path) -> None:
    raw, weights = files()
    (tmp_path / CONFIG).write_bytes(raw)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(IntegrityError, match="nothing is unpickled here"):
        read_folder(tmp_path).unwrap("adapter")
    (tmp_path / WEIGHTS).write_bytes(weights)
    assert read_folder(tmp_path).unwrap("adapter") == {CONFIG: raw, WEIGHTS: weights}
    (tmp_path / WEIGHTS).unlink()
    (tmp_path / WEIGHTS).mkdir()
    [wrong] = read_folder(tmp_path).violations
    assert (wrong.code, wrong.expected) == ("weights_missing", "a regular file")
