"""An adapter in its package, and modules that it saves whole: what has to agree with what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from redhost_peft.package import read_packaged
from redhost_peft.peft_adapter import (
    CONFIG,
    MAX_FEW,
    WEIGHTS,
    check_modules,
    check_saved,
    check_targets,
    read_adapter,
)
from safetensors.numpy import save

from redhost.registry.package.checked import Violation
from redhost.registry.package.payload import MAX_TOKENS
from redhost.registry.package.readers import read_expert
from redhost.registry.package.safetensors_check import MAX_FILE

from .peft_files import LINEARS, MODULES, START, D, R, bias, files, heads, tensors, whole

Files = dict[str, Any]
SAVES: dict[str, Any] = {"modules_to_save": ["pooler.dense", "Norm"]}


def test_modules_that_are_saved_whole_are_read_and_held_against_the_backbones() -> None:
    saved = whole("pooler.dense") | {f"{START}layer.1.LayerNorm.weight": np.ones(D, "f4")}
    read = read_adapter(*files(tensors() | saved, **SAVES)).unwrap("it")
    assert [*read.layers] == sorted(MODULES) and not read.biases
    assert read.saved == {
        "layer.1.LayerNorm.weight": (D,),  # "Norm" is an end of its name
        "pooler.dense.bias": (D,),
        "pooler.dense.weight": (D, D),
    }
    linears = {**LINEARS, "pooler.dense": (D, D)}
    assert not [*check_targets(read, linears, backbone="tiny")]
    wrong = [*check_targets(read, {**LINEARS, "pooler.dense": (D, 9)}, backbone="tiny")]
    assert [(v.code, v.field, v.expected, v.found) for v in wrong] == [
        (
            "adapter_misfit",
            f"{WEIGHTS} pooler.dense.weight",
            f"({D}, 9) or (9, {D}), as in backbone 'tiny'",
            f"({D}, {D})",
        )
    ]
    two = {**linears, "other.pooler.dense": (D, D)}
    [missing] = check_targets(read, two, backbone="tiny")
    assert missing.found == "none for 'other.pooler.dense'" and "saves" in missing.expected


def test_a_layer_in_a_saved_module_is_no_target_of_lora() -> None:
    saved = [MODULES[0], MODULES[2]]
    made = tensors(MODULES[1::2]) | whole(*saved)
    read = read_adapter(*files(made, modules_to_save=["query"])).unwrap("it")
    assert [*read.layers] == sorted(MODULES[1::2]) and len(read.saved) == 4
    assert not [*check_targets(read, LINEARS, backbone="tiny")]


def test_what_peft_writes_beside_a_saved_modules_bias_is_not_read() -> None:
    made = tensors() | whole("pooler.dense")
    made |= bias("pooler.dense", end="original_module.bias")
    made |= bias("pooler.dense", end="modules_to_save.bias")
    read = read_adapter(*files(made, bias="all", **SAVES)).unwrap("it")
    assert {*read.saved} == {"pooler.dense.bias", "pooler.dense.weight"} and not read.biases
    read = read_adapter(*files(made, **SAVES)).unwrap("it")
    assert [
        v.code for v in check_targets(read, {**LINEARS, "pooler.dense": (D, D)}, backbone="x")
    ] == []
    assert len(read.saved) == 4  # the open backbone, which has no such module, refuses it


def test_a_head_of_the_adapters_model_is_refused_by_name() -> None:
    named = {n.replace(START, f"{START}bert."): t for n, t in tensors().items()}
    made = named | whole("classifier")
    read = read_adapter(*files(made, modules_to_save=["classifier", "score"])).unwrap("it")
    [wrong] = check_targets(read, LINEARS, backbone="tiny")
    assert (wrong.code, wrong.field) == ("adapter_misfit", f"{CONFIG} modules_to_save")
    assert "'classifier'" in wrong.found and "backbone 'tiny'" in wrong.expected
    assert wrong.hint.startswith("A head comes from the package's labels")
    without = read_adapter(*files(named, modules_to_save=["classifier", "score"])).unwrap("it")
    assert not [*check_targets(without, LINEARS, backbone="tiny")]  # names of nothing, as to PEFT


def test_a_package_of_an_adapter_is_valid(package: Any) -> None:
    read = read_expert(package()).unwrap("it")
    assert not violations(package())
    assert read.manifest.form == "lora" and read.files[CONFIG] == files()[0]
    assert {CONFIG, WEIGHTS} <= read.files.keys()
    same = read_expert(package(adapter_config__json=files()[0] + b"\n")).unwrap("it")
    assert same.digest != read.digest


def test_weights_may_be_as_large_as_those_of_large_models_and_nothing_else_may(
    package: Any,
) -> None:
    shape, name = (17, 2**20), "embeddings.words.weight"
    whole = {f"{START}{name}": np.ones(shape, "f4")}
    raw, weights = files(tensors() | whole, modules_to_save=["embeddings.words"])
    made = package(adapter_config__json=raw, adapter_model__safetensors=weights)
    assert len(weights) > MAX_FILE and read_expert(made).unwrap("it").weights == weights
    [wrong] = read_expert({**made, "canary.safetensors": bytes(MAX_FILE + 1)}).violations
    assert wrong.code == "canary_too_large"


def violations(made: Files) -> tuple[Violation, ...]:
    """Return what the host finds, without the plugin, and else what the plugin does."""
    read = read_expert(made)
    if read.value is None:
        return read.violations
    return read_packaged(read.value.manifest, read.value.files).violations


OWN = {"writes.space": "labels"}


def cases() -> Iterator[tuple[str, dict[str, Any], dict[str, bytes], str, str]]:
    """Yield name, changes to the manifest, other parts, code and field."""
    yield "no adapter", {"files": ...}, {}, "manifest_field", "files"
    yield "another form", {"form": "linear", "rank": 0}, {}, "manifest_field", "files"
    yield "another rank", {"rank": 5}, {}, "manifest_field", "rank"
    yield "no rank", {"rank": 0}, {}, "manifest_field", "rank"
    yield "logits", {"writes.space": "logits"}, {}, "manifest_field", "writes.space"
    yield "a tap", {"reads.tap": "1"}, {}, "manifest_field", "reads.tap"
    yield "no head", OWN, {}, "manifest_field", "files"
    yield "a head of nobody", {}, {"head__safetensors": heads()}, "manifest_field", "files"
    yield "another head", OWN, {"head__safetensors": heads(rows=2)}, "files_tensors", "head"
    yield "NaN", OWN, {"head__safetensors": heads(value=np.nan)}, "files_not_finite", "head"
    yield "1e9", OWN, {"head__safetensors": heads(value=1e9)}, "files_range", "head"
    yield "digest", {"files": {CONFIG: "0" * 64}}, {}, "files_digest", CONFIG
    yield "code", {"files": {"config.py": "0" * 64}}, {}, "manifest_field", "files"
    z = {"z": np.ones((2, D), "f4"), "delta": np.ones((2, D), "f4")}
    out = save({**z, "delta": np.ones((2, 3), "f4")})
    own = {"head__safetensors": heads(), "canary__safetensors": out}
    yield "no tokens", {}, {"canary__safetensors": save(z)}, "canary_tensors", "canary"
    yield "none of a head", OWN, own, "canary_tensors", "canary"
    bad = save(z | {"tokens": np.full((2, 5), -1, "i8")})
    yield "tokens", {}, {"canary__safetensors": bad}, "canary_tensors", "canary"
    many = save(z | {"tokens": np.ones((2, MAX_TOKENS // 2 + 1), "i8")})
    yield "many tokens", {}, {"canary__safetensors": many}, "canary_tensors", "canary"
    pissa = files(init_lora_weights="pissa")[0]
    yield "PiSSA", {}, {"adapter_config__json": pissa}, "adapter_config", CONFIG
    fewer = files(tensors(MODULES[1:]))[1]
    listing = {"tensors": {n: t.shape for n, t in tensors().items()}}
    parts = {"adapter_model__safetensors": fewer}
    yield "tensors", listing, parts, "weights_tensors", f"{START}{MODULES[0]}"


def test_a_package_with_labels_of_its_own_has_their_head(package: Any) -> None:
    assert not violations(package(OWN, head__safetensors=heads()))
    wide = save({"W": np.ones((3, D + 1), "f4"), "b": np.ones(3, "f4")})
    [wrong] = violations(package(OWN, head__safetensors=wide))
    assert wrong.code == "files_tensors" and wrong.found.startswith(f"(3, {D + 1})")
    [wrong] = violations(package({"writes.space": "logits"}))
    assert (wrong.field, wrong.found) == ("writes.space", "'logits'")


def test_a_bias_has_as_many_numbers_as_its_layer_puts_out() -> None:
    module = "encoder.layer.0.intermediate.dense"
    made = {
        f"{START}{module}.lora_A.weight": np.ones((R, D), "f4"),
        f"{START}{module}.lora_B.weight": np.ones((32, R), "f4"),
    }
    given = {"target_modules": [module], "bias": "all"}
    right = read_adapter(*files(made | bias(module, 32), **given)).unwrap("it")
    assert not [*check_targets(right, LINEARS, backbone="tiny")]
    other = bias(MODULES[0], D + 1)  # of a layer that it only gives a bias
    read = read_adapter(*files(made | other, **given)).unwrap("it")
    [wrong] = check_targets(read, LINEARS, backbone="tiny")
    assert (wrong.code, wrong.expected, wrong.found) == ("adapter_misfit", f"({D})", f"({D + 1})")


def test_with_lora_bias_every_layer_has_one() -> None:
    biases = {f"{START}{module}.lora_B.bias": np.ones(D, "f4") for module in MODULES}
    read = read_adapter(*files(tensors() | biases, lora_bias=True)).unwrap("it")
    assert {*read.tensors[MODULES[0]]} == {"A", "B", "b"}
    lacking = read_adapter(*files(lora_bias=True)).violations
    assert [(v.code, v.field) for v in lacking] == [
        ("weights_tensors", f"{WEIGHTS} {module}") for module in sorted(MODULES)
    ]
    assert "lora_B.bias" in lacking[0].expected and "lora_B.bias" not in lacking[0].found


@pytest.mark.parametrize(("key", "end"), [("layers_pattern", "layer"), ("modules_to_save", "end")])
def test_a_list_that_is_compared_with_every_name_has_few_entries(key, end) -> None:
    names = [end, *(f"{end}{n}" for n in range(MAX_FEW))]
    given = {"layers_to_transform": [0, 1]} if key == "layers_pattern" else {}
    assert not read_adapter(*files(**given, **{key: names[:-1]})).violations
    [wrong] = read_adapter(*files(**given, **{key: names})).violations
    assert (wrong.code, wrong.field) == ("adapter_config", f"{CONFIG} {key}")
    assert wrong.found == str(MAX_FEW + 1)


def test_of_modules_that_are_not_there_the_first_is_compared_with_those_that_are() -> None:
    modules = {"encoder.layer.0.querry": (D, D), "encoder.layer.1.querry": (D, D)}
    linears = {"encoder.layer.0.query": (D, D), "encoder.layer.1.query": (D, D)}
    first, second = check_modules(modules, linears, backbone="tiny")
    for wrong, name in ((first, "0.querry"), (second, "1.querry")):
        assert (wrong.code, wrong.field) == ("adapter_misfit", f"{WEIGHTS} encoder.layer.{name}")
        assert "'tiny'" in wrong.expected
    assert "encoder.layer.0.query'" in first.found
    assert second.found == "no such module."
    [wrong] = check_modules({"x": (D, D)}, {"x": (D, 9)}, backbone="tiny")
    assert (wrong.expected, wrong.found) == (f"({D}, 9), as in backbone 'tiny'", f"({D}, {D})")


def test_a_linear_module_is_saved_as_a_weight_and_a_bias_alone() -> None:
    fitting = {"x.weight": (9, D), "x.bias": (D,), "norm.scale": (1,)}
    assert not [*check_saved(fitting, {"x": (D, 9)}, backbone="tiny")]
    [wrong] = check_saved({"x.scale": (D,)}, {"x": (D, 9)}, backbone="tiny")
    assert (wrong.field, wrong.found) == (f"{WEIGHTS} x.scale", f"({D})")
    [wrong] = check_saved({"x.bias": (9,)}, {"x": (D, 9)}, backbone="tiny")
    assert (wrong.expected, wrong.found) == (f"({D}), as in backbone 'tiny'", "(9)")


@pytest.mark.parametrize(
    ("change", "parts", "code", "field"), [c[1:] for c in cases()], ids=[c[0] for c in cases()]
)
def test_a_package_that_is_not_what_it_says_is_refused(package, change, parts, code, field) -> None:
    wrong = violations(package(change, **parts))
    assert (code, True) in {(v.code, v.field.startswith(field)) for v in wrong}, wrong
    assert all(v.expected and v.found and v.hint for v in wrong)


def test_the_backbones_list_is_held_against_it() -> None:
    adapter = read_adapter(*files()).unwrap("it")
    assert not [*check_targets(adapter, LINEARS, backbone="tiny")]
    for linears in (dict.fromkeys(LINEARS, (9, D)), {"other": (D, D)}):
        wrong = [*check_targets(adapter, linears, backbone="tiny")]
        assert {v.code for v in wrong} == {"adapter_misfit"}
        assert re.search(r"encoder\.layer", wrong[0].reason)
