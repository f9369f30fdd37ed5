"""The systems of `redhost lab decoding`: each continues prompts, with the adapter named for it.

The adapters' weights are random: what they cost does not depend on them.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from redhost_generate.engine_client import EngineClient

if TYPE_CHECKING:
    import redhost

__all__ = [
    "ADAPTERS",
    "FLOATS",
    "MIXED",
    "NAMED",
    "RANK",
    "SHIPPED",
    "TARGETS",
    "TOGETHER",
    "TOKENS",
    "VLLM",
    "Answer",
    "System",
    "systems_of",
]

ADAPTERS, RANK, TOKENS = 8, 8, 32
TARGETS = ("q_proj", "v_proj")
"""The layers that PEFT adapts by default in models of this kind."""

TOGETHER, ALONE = "redhost, together", "redhost, one by one"
MIXED, NAMED = "PEFT, adapter_names", "PEFT, one by one"
FLOATS, SHIPPED = "llama.cpp, the same floats", "llama.cpp, as shipped"
VLLM = "vLLM, the same floats"

Answer = tuple[list[str], float, float]
"""The texts, the seconds until all have their first token, and until all have the last."""

System = Callable[[Sequence[str], Sequence[str]], Answer]
"""Prompts, and the names of their adapters → the answer."""


def systems_of(
    source: Path, folder: Path, stack: ExitStack
) -> tuple[dict[str, System], tuple[str, ...]]:
    """Return the systems that continue texts with a model, and the names of its adapters.

    Args:
        source: The model's GGUF file.
        folder: An empty folder for their files.
        stack: Ends their servers.

    Raises:
        redhost.MissingError: If llama.cpp is not installed.
    """
    model, saved = _composition(source)
    theirs = _peft(model, saved, folder)
    ours, peft = partial(_batched, model), partial(_mixed, model, theirs)
    systems: dict[str, System] = {
        TOGETHER: ours,
        ALONE: partial(_one_by_one, ours),
        MIXED: peft,
        NAMED: partial(_one_by_one, peft),
        **_llama_cpp(stack, model, source, saved, folder),
        **_vllm(stack, model, saved, folder),
    }
    return systems, tuple(saved)


def _composition(source: Path) -> tuple[redhost.ComposedModel, dict[str, dict[str, bytes]]]:
    """Return a GGUF file's model with adapters on its bus, and the adapters' files."""
    import safetensors.torch
    import torch
    from red_lab.models import in_memory
    from redhost_peft.lora import lora_from_files
    from redhost_peft.lora_run import fresh_adapter
    from redhost_peft.peft_adapter import WEIGHTS

    import redhost
    from redhost.core.backbones.interventions.layout import with_layout
    from redhost.core.bus.bus import BACKBONE, LayerNorm
    from redhost.core.model.build import build_bus
    from redhost_generate.causal import CausalRouter

    task = redhost.plugins.Plugins().task("generation")
    backbone = redhost.Backbone.load(f"gguf:{source}", task=task)
    saved = dict[str, dict[str, bytes]]()
    for seed in range(ADAPTERS):
        files = fresh_adapter(
            backbone, rank=RANK, blocks=len(backbone.trunk.blocks), targets=TARGETS, seed=seed
        )
        tensors = safetensors.torch.load(files[WEIGHTS])
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in tensors.items():
            if "lora_B" in name:  # else it is zero, and all adapters are the backbone
                tensors[name] = 0.02 * torch.randn(tensor.shape, generator=generator)
        files[WEIGHTS] = safetensors.torch.save(tensors, metadata={"format": "pt"})
        saved[f"adapter{seed}"] = files
    experts = {
        name: lora_from_files(files, who=name, space="hidden", labels=())
        for name, files in saved.items()
    }
    backbone, columns = with_layout(backbone, experts), (*experts, BACKBONE)
    bus = build_bus(
        backbone,
        norm=LayerNorm(width=backbone.width, eps=backbone.eps),
        router=CausalRouter(width=backbone.width, columns=columns),
        experts=experts,
        columns=columns,
    )
    return in_memory(backbone, bus, kind="causal"), saved


def _peft(
    model: redhost.ComposedModel, saved: Mapping[str, Mapping[str, bytes]], folder: Path
) -> Any:
    """Return PEFT's model of the same language model with the same adapters."""
    import safetensors.torch
    from peft import PeftModel
    from redhost_peft.peft_adapter import CONFIG, WEIGHTS

    whole: Any = _language_model(model)
    named: Any = None
    whole.generation_config.eos_token_id = None  # all texts have the same number of tokens
    for name, files in saved.items():
        place = folder / name
        place.mkdir()
        tensors = safetensors.torch.load(files[WEIGHTS])
        outer = {n.replace("model.", "model.model.", 1): t for n, t in tensors.items()}
        (place / WEIGHTS).write_bytes(safetensors.torch.save(outer, metadata={"format": "pt"}))
        config = {**json.loads(files[CONFIG]), "target_modules": [*TARGETS]}
        (place / CONFIG).write_text(json.dumps(config), "utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if named is None:
                named = PeftModel.from_pretrained(
                    whole, str(place), adapter_name=name, trust_remote_code=False
                )
            else:
                named.load_adapter(str(place), name)
    return named.eval()


def _language_model(model: redhost.ComposedModel) -> Any:
    """Return transformers' model of the same weights."""
    import torch
    from transformers import AutoModelForCausalLM

    trunk, auto = model.backbone.trunk, cast("Any", AutoModelForCausalLM)
    config = deepcopy(trunk.model.config)
    del config.quantization_config  # that of the file, whose weights are floats by now
    with torch.random.fork_rng(devices=[]):
        whole = auto.from_config(config, dtype=torch.float32)
    states = {f"model.{name}": t.contiguous() for name, t in trunk.model.state_dict().items()}
    whole.load_state_dict({**states, "lm_head.weight": model.backbone.classifier})
    return whole.eval()


def _llama_cpp(
    stack: ExitStack,
    model: redhost.ComposedModel,
    source: Path,
    saved: Mapping[str, Mapping[str, bytes]],
    folder: Path,
) -> dict[str, System]:
    """Return llama.cpp's answer with the language model's floats, and with the file as shipped."""
    import safetensors.torch
    import torch
    from redhost_peft.gguf_adapter import write_gguf
    from redhost_peft.peft_adapter import CONFIG, WEIGHTS, read_adapter

    from redhost_generate.llama_cpp import llama_cpp, write_floats

    trunk, adapters = model.backbone.trunk, dict[str, Path]()
    for name, files in saved.items():
        adapter = read_adapter(files[CONFIG], files[WEIGHTS]).unwrap(name)
        tensors = safetensors.torch.load(files[WEIGHTS])
        adapters[name] = folder / f"{name}.gguf"
        write_gguf(
            adapters[name], adapter, tensors, name=name, config=trunk.model.config, prefix=""
        )
    write_floats(source, folder / "floats.gguf")
    weights = {FLOATS: folder / "floats.gguf", SHIPPED: source}

    running = (llama_cpp(f, adapters, threads=torch.get_num_threads()) for f in weights.values())
    return {
        name: partial(_served, model, stack.enter_context(server))
        for name, server in zip(weights, running, strict=True)
    }


def _vllm(
    stack: ExitStack,
    model: redhost.ComposedModel,
    adapters: Iterable[str],
    folder: Path,
) -> dict[str, System]:
    """Return vLLM's answer with the adapters that PEFT has read, if it is installed."""
    import torch

    from redhost_generate.vllm import is_installed, vllm

    if not is_installed():
        return {}
    _language_model(model).save_pretrained(folder / "model")
    model.backbone.trunk.tokenizer.save_pretrained(folder / "model")
    places = {name: folder / name for name in adapters}
    server = vllm(folder / "model", places, rank=RANK, threads=torch.get_num_threads())
    return {VLLM: partial(_served, model, stack.enter_context(server))}


def _served(
    model: redhost.ComposedModel, server: EngineClient, texts: Sequence[str], names: Sequence[str]
) -> Answer:
    """Continue texts by a server, which is given the tokens of the prompts."""
    from redhost_generate.tokens import start_of, tokenize

    trunk = model.backbone.trunk
    rows = [[start_of(trunk), *tokenize(trunk, text)] for text in texts]
    return server.generate(rows, names, tokens=TOKENS)


def _batched(model: redhost.ComposedModel, texts: Sequence[str], names: Sequence[str]) -> Answer:
    """Continue texts in shared passes, each with the adapter that is named for it."""
    from redhost_generate.decode import Token, generate, read_batch

    begin = time.perf_counter()
    going = [
        generate(model, text, expert=name, max_tokens=TOKENS, temperature=0)
        for text, name in zip(texts, names, strict=True)
    ]
    for text in going:
        text.end = None
    made: list[list[int]] = [[] for _ in going]
    first = 0.0
    for _ in range(TOKENS):
        for ids, choose in zip(made, read_batch(going), strict=True):
            token = choose()
            ids.extend((token.id,) if isinstance(token, Token) else ())
        first = first or time.perf_counter() - begin
    written = [str(model.backbone.trunk.tokenizer.decode(ids)) for ids in made]
    return written, first, time.perf_counter() - begin


def _mixed(
    model: redhost.ComposedModel, theirs: Any, texts: Sequence[str], names: Sequence[str]
) -> Answer:
    """Continue texts with PEFT: one with its adapter selected, several in a mixed batch."""
    import torch

    from redhost_generate.tokens import start_of, tokenize

    begin, first = time.perf_counter(), list[float]()
    trunk = model.backbone.trunk
    rows = [[start_of(trunk), *tokenize(trunk, text)] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    options: dict[str, Any] = {}
    if len(texts) == 1:
        theirs.set_adapter(names[0])
    else:
        options["adapter_names"] = [*names]

    def note(_ids: Any, scores: Any) -> Any:
        first.append(time.perf_counter() - begin)
        return scores

    with torch.inference_mode():
        out = theirs.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            pad_token_id=0,
            logits_processor=[note],
            **options,
        )
    written = [str(trunk.tokenizer.decode(ids)) for ids in out[:, longest:]]
    return written, first[0], time.perf_counter() - begin


def _one_by_one(
    system: Callable[[Sequence[str], Sequence[str]], Answer],
    texts: Sequence[str],
    names: Sequence[str],
) -> Answer:
    """Continue texts one after another."""
    made, first, total = list[str](), 0.0, 0.0
    for text, name in zip(texts, names, strict=True):
        [one], at, took = system([text], [name])
        made.append(one)
        first, total = total + at, total + took
    return made, first, total
