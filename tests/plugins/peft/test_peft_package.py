"""An adapter in its package, and modules that it saves whole: what has to agree with what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from redhost_peft.package import HEAD, read_packaged
from redhost_peft.peft_adapter import CONFIG, WEIGHTS, check_targets, read_adapter
from safetensors.numpy import save

from redhost.registry.package.checked import Violation
from redhost.registry.package.payload import MAX_TOKENS
from redhost.registry.package.readers import read_expert
from redhost.registry.package.safetensors_check import MAX_FILE

from .peft_files import LINEARS, MODULES, START, D, R, bias, files, tensors, whole

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


@pytest.fixture
def package(make_expert: Any) -> Callable[..., Files]:
    """Return the function that makes an adapter's package, with changes to its manifest."""

    def make(change: dict[str, Any] | None = None, **parts: bytes) -> Files:
        raw, weights = files()
        out = 3 if (change or {}).get("writes.space") == "labels" else D
        rows = {"z": np.ones((2, D), "f4"), "delta": np.ones((2, out), "f4")}
        given = {
            CONFIG: raw,
            WEIGHTS: weights,
            "canary.safetensors": save(rows | {"tokens": np.ones((2, 5), "i8")}),
        } | {n.replace("__", "."): data for n, data in parts.items()}
        sha = {n: sha256(data).hexdigest() for n, data in given.items()}
        made = {
            "form": "lora",
            "activation": "identity",
            "rank": R,
            "weights": {"file": WEIGHTS, "sha256": sha[WEIGHTS]},
            "files": {n: sha[n] for n in (CONFIG, HEAD) if n in given},
            "canary.sha256": sha["canary.safetensors"],
        }
        whole: Files = make_expert(
            "a", change={k: v for k, v in (made | (change or {})).items() if v is not ...}
        )
        return {**whole, **given}

    return make


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


def heads(*, rows: int = 3, value: float = 1.0) -> bytes:
    return save({"W": np.full((rows, D), value, "f4"), "b": np.ones(rows, "f4")})


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
