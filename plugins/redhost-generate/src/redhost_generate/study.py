"""`redhost lab decoding`: texts of different adapters at once, beside PEFT and llama.cpp.

Every system gives each prompt the same number of greedy tokens, with the adapter that is named for
it. The adapters' weights are random: what they cost does not depend on them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from red_lab.study import Cell, Study

if TYPE_CHECKING:
    import redhost

__all__ = ["STUDY", "decoding"]

ADAPTERS, RANK, TOKENS = 8, 8, 32
REST = 1.0
"""Seconds between two systems: threads wait for more work before they sleep."""

TARGETS = ("q_proj", "v_proj")
"""The layers that PEFT adapts by default in models of this kind."""

TOGETHER, ALONE = "redhost, together", "redhost, one by one"
MIXED, NAMED = "PEFT, adapter_names", "PEFT, one by one"
FLOATS, FOUR_BITS = "llama.cpp, the same floats", "llama.cpp, four bits"

SUBJECTS = ("a lighthouse", "the first railway", "bread", "a violin")
OPENINGS = (
    "Explain {} to a child.",
    "Write the beginning of a story about {} and a storm in the middle of the night:",
    "List what one has to know of {}, one item a line.\n1.",
    "Q: Who needs {}, and why?\nA:",
    "{}",
    "In three sentences, and without any adjective, describe {} as a traveller from abroad would",
    "A letter to the editor of a small newspaper about {}.\n\nDear",
    "def describe():\n    return '''{} is",
)

Answer = tuple[list[str], float, float]
"""The texts, the seconds until all have their first token, and until all have the last."""

System = Callable[[Sequence[str], Sequence[str]], Answer]
"""Prompts, and the names of their adapters → the answer."""


def prompts(count: int) -> list[str]:
    """Return so many different prompts, of different lengths."""
    return [
        OPENINGS[n % len(OPENINGS)].format(SUBJECTS[n // len(OPENINGS) % len(SUBJECTS)])
        for n in range(count)
    ]


def measure(cell: Cell) -> dict[str, Any]:
    """Return tokens a second and the first tokens' seconds of every system, and texts in common."""
    model, saved = _composition()
    texts, names = prompts(int(cell.part)), [*islice(cycle(model.bus.ids), int(cell.part))]
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder, ExitStack() as stack:
        theirs = _peft(model, saved, Path(folder))
        ours, peft = partial(_batched, model), partial(_mixed, model, theirs)
        systems: Mapping[str, System] = {
            TOGETHER: ours,
            ALONE: partial(_one_by_one, ours),
            MIXED: peft,
            NAMED: partial(_one_by_one, peft),
            **_llama_cpp(stack, model, saved, Path(folder)),
        }
        order = [*systems][cell.seed % len(systems) :] + [*systems][: cell.seed % len(systems)]
        answers = {name: _rested(systems[name], texts, names) for name in order}
    return {
        name: {
            "rate": TOKENS * len(texts) / last,
            "first": first,
            "same": sum(map(str.__eq__, made, answers[NAMED][0])) / len(texts),
        }
        for name, (made, first, last) in answers.items()
    }


def _rested(system: System, texts: Sequence[str], names: Sequence[str]) -> Answer:
    """Return a system's answer once it has read its weights, after another one's threads sleep.

    The order of systems is a circle, so the first answer after llama.cpp's would be redhost's in
    every round.
    """
    time.sleep(REST)
    system(texts[:1], names[:1])
    return system(texts, names)


def _composition() -> tuple[redhost.ComposedModel, dict[str, dict[str, bytes]]]:
    """Return SmolLM2 with adapters on its bus, and the adapters' files."""
    import safetensors.torch
    import torch
    from red_lab.models import in_memory, smollm2_file
    from redhost_peft.lora import lora_from_files
    from redhost_peft.lora_run import fresh_adapter
    from redhost_peft.peft_adapter import WEIGHTS

    import redhost
    from redhost.core.backbones.interventions.layout import with_layout
    from redhost.core.bus.bus import BACKBONE, LayerNorm
    from redhost.core.model.build import build_bus
    from redhost_generate.causal import CausalRouter

    task = redhost.plugins.Plugins().task("generation")
    backbone = redhost.Backbone.load(f"gguf:{smollm2_file()}", task=task)
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
    import torch
    from peft import PeftModel
    from redhost_peft.peft_adapter import CONFIG, WEIGHTS
    from transformers import AutoModelForCausalLM

    trunk = model.backbone.trunk
    with torch.random.fork_rng(devices=[]):
        auto: Any = AutoModelForCausalLM
        whole: Any = auto.from_config(trunk.model.config, dtype=torch.float32)
    states = {f"model.{name}": t.contiguous() for name, t in trunk.model.state_dict().items()}
    whole.load_state_dict({**states, "lm_head.weight": model.backbone.classifier})
    whole.generation_config.eos_token_id = None  # all texts have the same number of tokens
    named: Any = None
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
                    whole.eval(), str(place), adapter_name=name, trust_remote_code=False
                )
            else:
                named.load_adapter(str(place), name)
    return named.eval()


def _llama_cpp(
    stack: ExitStack,
    model: redhost.ComposedModel,
    saved: Mapping[str, Mapping[str, bytes]],
    folder: Path,
) -> dict[str, System]:
    """Return llama.cpp's answer with the floats that the language model has here, and as shipped.

    It is given the tokens of the prompts, so that all systems read the same ones.
    """
    import safetensors.torch
    import torch
    from red_lab.models import smollm2_file
    from redhost_peft.gguf_adapter import write_gguf
    from redhost_peft.peft_adapter import CONFIG, WEIGHTS, read_adapter

    from redhost_generate.llama_cpp import LlamaCpp, llama_cpp, write_floats
    from redhost_generate.tokens import start_of, tokenize

    trunk, adapters = model.backbone.trunk, dict[str, Path]()
    for name, files in saved.items():
        adapter = read_adapter(files[CONFIG], files[WEIGHTS]).unwrap(name)
        tensors = safetensors.torch.load(files[WEIGHTS])
        adapters[name] = folder / f"{name}.gguf"
        write_gguf(
            adapters[name], adapter, tensors, name=name, config=trunk.model.config, prefix=""
        )
    shipped = Path(smollm2_file())
    write_floats(shipped, folder / "floats.gguf")
    weights = {FLOATS: folder / "floats.gguf", FOUR_BITS: shipped}

    def system_of(server: LlamaCpp) -> System:
        def answer(texts: Sequence[str], names: Sequence[str]) -> Answer:
            rows = [[start_of(trunk), *tokenize(trunk, text)] for text in texts]
            return server.generate(rows, names, tokens=TOKENS)

        return answer

    running = (llama_cpp(f, adapters, threads=torch.get_num_threads()) for f in weights.values())
    return {n: system_of(stack.enter_context(s)) for n, s in zip(weights, running, strict=True)}


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


def summarise(part: str, cells: Sequence[Any]) -> dict[str, Any]:
    """Return the medians of the rounds, and those of the ratios within a round."""
    del part

    def median(name: str, key: str) -> float:
        return float(statistics.median(cell[name][key] for cell in cells))

    return {
        name: {
            "rate": median(name, "rate"),
            "first": median(name, "first"),
            "same": min(cell[name]["same"] for cell in cells),
            "ratio": statistics.median(
                cell[TOGETHER]["rate"] / cell[name]["rate"] for cell in cells
            ),
        }
        for name in cells[0]
    }


def names(metrics: Mapping[str, Any]) -> Mapping[str, object]:
    """Return what the page uses besides its metrics."""
    del metrics
    return {"adapters": ADAPTERS, "rank": RANK, "count": TOKENS, "targets": TARGETS}


STUDY = Study(
    name="decoding",
    help="Time texts of different adapters at once, beside PEFT and llama.cpp.",
    schema="redhost-decoding/1",
    parts=("1", "8", "32"),
    measure=measure,
    summarise=summarise,
    package="redhost_generate",
    names=names,
    seeds=3,
)

decoding: click.Command = STUDY.command
