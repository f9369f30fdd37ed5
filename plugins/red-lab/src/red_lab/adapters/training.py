"""Adapters as third parties train them: PEFT's LoRA in transformers' model, each independently.

Finished adapters are not trained again; interrupted training resumes from the last checkpoint. What
PEFT wrote is read back as files: the expert that they make, shuffled values, and merges.
"""

from __future__ import annotations

import io
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from redhost_peft.lora import LoraExpert, lora_from_files
from redhost_peft.lora_run import FORMAT
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from torch import Tensor, nn

from red_lab.models import smollm2_file
from red_lab.training import resume, store

__all__ = [
    "BATCH",
    "BLOCKS",
    "LAYERS",
    "RANK",
    "TARGETS",
    "WINDOW",
    "Files",
    "combined",
    "descend_linearly",
    "expert_of",
    "files_of",
    "in_peft",
    "language_model",
    "shuffled",
    "shuffled_windows",
    "silent",
    "train_stranger",
    "training_windows",
]

Files = Mapping[str, bytes]


@contextmanager
def silent() -> Iterator[None]:
    """Drop what libraries print and warn of while the block runs."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def files_of(package: Path) -> dict[str, bytes]:
    """Return PEFT's two files of a package."""
    return {name: (package / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def expert_of(files: Files) -> LoraExpert:
    """Return an adapter without a head."""
    return lora_from_files(files, who="an adapter", space="hidden", labels=()).requires_grad_(False)


def shuffled(files: Files, seed: int) -> dict[str, bytes]:
    """Return an adapter of the same shapes with the values of each tensor permuted at random."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: t.flatten()[torch.randperm(t.numel(), generator=generator)].reshape(t.shape)
        for name, t in safetensors.torch.load(files[WEIGHTS]).items()
    }
    return {CONFIG: files[CONFIG], WEIGHTS: safetensors.torch.save(tensors)}


def in_peft(model: Any, adapters: Mapping[str, Path]) -> Any:
    """Return PEFT's model with every adapter loaded under its name, the first one active.

    Args:
        model: The adapted model; it is wrapped in place.
        adapters: The folder of each adapter's PEFT files.
    """
    from peft import PeftModel

    (first, folder), *others = adapters.items()
    with silent():
        adapted = PeftModel.from_pretrained(model, folder, adapter_name=first)
        for name, path in others:
            adapted.load_adapter(path, adapter_name=name)
    return adapted.eval()


def combined(
    adapted: Any, names: Sequence[str], how: str, *, weight: float, options: Mapping[str, float]
) -> Files:
    """Return several adapters merged into one.

    Args:
        adapted: The model from `in_peft`.
        names: The adapters to merge.
        how: PEFT's type: ``cat`` sums the updates themselves, ``linear`` sums the factors.
        weight: The weight of each adapter.
        options: Options of that type.
    """
    from peft import get_peft_model_state_dict

    with silent():
        torch.manual_seed(0)
        adapted.add_weighted_adapter(
            list(names), [weight] * len(names), "merged", combination_type=how, **options
        )
        state = get_peft_model_state_dict(adapted, adapter_name="merged")
        config = adapted.peft_config["merged"]
        config.inference_mode = True
        adapted.delete_adapter("merged")
    weights = {name: t.contiguous() for name, t in state.items()}
    with tempfile.TemporaryDirectory() as folder:
        # `adapted.save_pretrained` also writes a model card, which needs a transformers model.
        config.save_pretrained(folder)
        written = Path(folder, CONFIG).read_bytes()
    return {CONFIG: written, WEIGHTS: safetensors.torch.save(weights, metadata=FORMAT)}


LAYERS, BLOCKS, RANK = 30, 15, 8
"""The model's blocks; for every adapter the top blocks that it adapts, and R; α is 2 R."""

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

WINDOW, BATCH = 256, 2
"""Tokens of a window, windows of a step."""

RATE = 2e-3
"""An adapter's initial learning rate, which decays linearly to zero; not tuned."""

EVERY = 16
"""Steps between checkpoints."""

Progress = Callable[[int, int], None]
"""Called with (steps done, total steps)."""


def language_model(*, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return transformers' model of SmolLM2-135M, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = smollm2_file()
    with silent():
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
    return model.to(dtype), tokenizer


def train_stranger(
    folder: Path, learnt: Tensor, *, model: Any, progress: Progress, rank: int = RANK
) -> None:
    """Train an adapter and save it as PEFT does, unless it exists.

    Args:
        folder: The folder for PEFT's two files.
        learnt: The windows of all steps, ``(S · BATCH, WINDOW)``.
        model: The language model, in bfloat16; it is not changed.
        progress: Shows the progress.
        rank: R; an adapter of another rank than the others is scaled by α / √R as they are
            (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732).
    """
    from peft import LoraConfig, get_peft_model

    if (folder / WEIGHTS).exists():
        return
    torch.manual_seed(0)
    top = list(range(model.config.num_hidden_layers - BLOCKS, model.config.num_hidden_layers))
    alpha: dict[str, Any] = {"lora_alpha": 2 * RANK}
    if rank != RANK:
        alpha = {"lora_alpha": 2 * math.sqrt(RANK), "use_rslora": True}
    config = LoraConfig(r=rank, target_modules=list(TARGETS), layers_to_transform=top, **alpha)
    with silent():
        adapted = get_peft_model(model, config)
    checkpoint, part = folder.with_suffix(".pt"), folder.with_suffix(".saving")
    descend_linearly(
        nn.ParameterList(p for p in adapted.parameters() if p.requires_grad),
        torch.split(learnt, BATCH),
        lambda ids: adapted(input_ids=ids, labels=ids).loss,
        rate=RATE,
        checkpoint=checkpoint,
        progress=progress,
    )
    with silent():
        adapted.save_pretrained(str(part))
        adapted.unload()
    part.replace(folder)
    checkpoint.unlink(missing_ok=True)


def descend_linearly(
    weights: nn.Module,
    batches: Sequence[Tensor],
    loss_on: Callable[[Tensor], Tensor],
    *,
    rate: float,
    checkpoint: Path,
    progress: Progress,
) -> None:
    """Take a step of AdamW for each batch, at a rate that decays linearly to zero.

    Args:
        weights: What is trained.
        batches: The tokens of each step.
        loss_on: Tokens → loss.
        rate: The initial learning rate.
        checkpoint: The file of the last checkpoint, from which a run resumes; it is left there.
        progress: Shows the progress.
    """
    optimizer = torch.optim.AdamW(weights.parameters(), lr=rate, weight_decay=0.0)
    count = {"steps": len(batches)}
    for step in range(resume(checkpoint, weights, optimizer, run=count), len(batches)):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / len(batches))
        loss_on(batches[step]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            store(checkpoint, weights, optimizer, step=step + 1, run=count)
        progress(step + 1, len(batches))


def training_windows(text: str, tokenizer: Any, *, steps: int) -> Tensor:
    """Return the windows of all steps, ``(steps · BATCH, WINDOW)``, in random order.

    Each begins with the start token. Every window of the text is used once before any is repeated.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    width = WINDOW - 1
    rows = torch.tensor(ids[: len(ids) // width * width]).reshape(-1, width)
    rows = torch.cat([torch.full((len(rows), 1), tokenizer.bos_token_id), rows], dim=1)
    generator = torch.Generator().manual_seed(0)
    rounds = math.ceil(steps * BATCH / len(rows))
    order = torch.cat([torch.randperm(len(rows), generator=generator) for _ in range(rounds)])
    return rows[order[: steps * BATCH]]


def shuffled_windows(texts: Mapping[str, str], steps: Mapping[str, int], tokenizer: Any) -> Tensor:
    """Return all authors' training windows ``(S · BATCH, WINDOW)``, in random order.

    Args:
        texts: Each author's training text.
        steps: Each author's number of steps.
        tokenizer: The language model's.
    """
    rows = torch.cat([training_windows(t, tokenizer, steps=steps[n]) for n, t in texts.items()])
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
