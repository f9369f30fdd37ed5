"""Adapters made to be slow: however a configuration is written, the check of it ends soon.

Each case is read and compared with a backbone of many modules, as every command does with each
installed adapter, and its answer is that of a bounded number of steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from redhost_peft.peft_adapter import check_targets, read_adapter

from .peft_files import START, D, Tensors, files, tensors

MOST = 2.0
"""Most seconds of process time."""

LONG = "a" * 200
NUMBERS = ".".join(["1"] * 100)


def nested(depth: int) -> str:
    pattern = "a"
    for _ in range(depth):
        pattern = f"({pattern}+)+"
    return f"{pattern}$"


def patterned(pattern: str) -> tuple[bytes, bytes]:
    names = [f"{LONG[:150]}{n}" for n in range(64)]
    return files(tensors(names), target_modules=pattern, exclude_modules=pattern)


def many_layers(count: int, end: str) -> tuple[bytes, bytes]:
    options: dict[str, Any] = {"target_modules": ["query"], "layers_to_transform": [0, 1]}
    names = [f"{LONG[:60]}{n}.{m}.query" for n in range(750) for m in range(2)]
    return files(tensors(names), layers_pattern=[f"{end}{n}" for n in range(count)], **options)


def dotted_ranks(count: int, dots: int) -> tuple[bytes, bytes]:
    keys = {f"{'.' * dots}{n}": 4 for n in range(count)}
    names = [f"{LONG[:140]}.{n}.query" for n in range(1500)]
    return files(tensors(names), rank_pattern=keys, alpha_pattern=keys)


def numbered() -> tuple[bytes, bytes]:
    names = [f"x{n}.{NUMBERS[:151]}.query" for n in range(200)]
    layers = [f"{'.' * 60}{n}" for n in range(63)] + ["." * 60]
    return files(
        tensors(names), layers_to_transform=[1], layers_pattern=layers, target_modules=["query"]
    )


def saved(count: int) -> tuple[bytes, bytes]:
    names = [f"{'b.' * 30}{n}head" for n in range(4000)]
    modules_left = {f"{START}{n}.weight": np.ones(1, "f4") for n in names}
    made: Tensors = {**tensors(), **modules_left}
    return files(made, modules_to_save=[f"{'b.' * 20}x{n}" for n in range(count - 1)] + ["d"])


CASES: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "1,000 layers' patterns": lambda: many_layers(1000, "." * 50),
    "64 layers' patterns": lambda: many_layers(64, "." * 60),
    "4,096 ranks of 140 dots": lambda: dotted_ranks(4096, 140),
    "1,000 ranks of 140 dots": lambda: dotted_ranks(1000, 140),
    "plus in plus": lambda: patterned("(a+)+$"),
    "star in star": lambda: patterned("(.*)*x"),
    "alternatives": lambda: patterned("(a|aa)+$"),
    "nested": lambda: patterned(nested(20)),
    "as many paths as allowed": lambda: patterned(".*.*x"),
    "100 layer numbers": numbered,
    "64 saved of 4,096": lambda: saved(64),
    "4,096 saved of 4,096": lambda: saved(4096),
}


@pytest.mark.parametrize("case", CASES)
def test_no_adapter_takes_long(case: str) -> None:
    raw, weights = CASES[case]()
    linears = {f"{LONG}.{NUMBERS}.{n}.query": (D, D) for n in range(4096)}
    started = time.process_time()
    adapter = read_adapter(raw, weights)
    wrong = [*adapter.violations]
    if adapter.value is not None:
        linears |= {name: layer.shape for name, layer in adapter.value.layers.items()}
        wrong += check_targets(adapter.value, linears, backbone="large")
    took = time.process_time() - started
    assert took < MOST
    assert {v.code for v in wrong} <= {"adapter_config", "adapter_misfit", "weights_tensors"}
