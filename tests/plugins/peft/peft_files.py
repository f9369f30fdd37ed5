"""An adapter's two files as PEFT writes them, small, with what a test changes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from safetensors.numpy import save

Tensors = dict[str, "np.ndarray[Any, Any]"]
R, D = 4, 16
MODULES = [f"encoder.layer.{n}.attention.self.{m}" for n in range(2) for m in ("query", "value")]
LINEARS = {**dict.fromkeys(MODULES, (D, D)), "encoder.layer.0.intermediate.dense": (32, D)}
START = "base_model.model."


def config(**changes: Any) -> dict[str, Any]:
    """Return a configuration as PEFT writes it, shortened."""
    known = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "base_model_name_or_path": "somebody/some-model",
        "peft_version": "0.17.0",
        "inference_mode": True,
        "lora_dropout": 0.1,
        "loftq_config": {},
        "megatron_config": None,
        "r": R,
        "lora_alpha": 8,
        "target_modules": ["query", "value"],
        "init_lora_weights": True,
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": None,
    }
    return {k: v for k, v in (known | changes).items() if v is not ...}


def tensors(modules: list[str] = MODULES, *, r: int = R) -> Tensors:
    rng = np.random.default_rng(0)
    made: Tensors = {}
    for module in modules:
        made[f"{START}{module}.lora_A.weight"] = rng.normal(size=(r, D)).astype("f4")
        made[f"{START}{module}.lora_B.weight"] = rng.normal(size=(D, r)).astype("f4")
    return made


def files(made: Tensors | None = None, **changes: Any) -> tuple[bytes, bytes]:
    return json.dumps(config(**changes)).encode(), save(tensors() if made is None else made)


def bias(module: str, size: int = D, *, end: str = "base_layer.bias") -> Tensors:
    return {f"{START}{module}.{end}": np.ones(size, "f4")}


def whole(*names: str, shape: tuple[int, ...] = (D, D)) -> Tensors:
    return {f"{START}{n}.{part}": np.ones(shape[: 2 - k], "f4") for n in names
            for k, part in enumerate(("weight", "bias"))}  # fmt: skip


def heads(*, rows: int = 3, value: float = 1.0) -> bytes:
    return save({"W": np.full((rows, D), value, "f4"), "b": np.ones(rows, "f4")})
