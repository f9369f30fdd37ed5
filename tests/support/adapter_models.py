"""Small language models with adapters of PEFT, and what these libraries themselves go on with."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import ExpertPlan, package_in
from redhost_peft.adapter import import_adapter
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import redhost
from redhost.core.types import BackgroundRow, Row
from redhost.registry.package.discover import from_folder
from redhost.testing import Environment

PROMPTS = (
    "3 + 4 = 7, and so on; " * 6,
    "3 + 4 = ",
    "the gat sat down\nthe cin",
    "def f129(x):\n    return x * 129",
)
TOKENS = 12
TARGETS: Mapping[str, list[str]] = {
    "tales": ["q_proj", "k_proj", "v_proj"],
    "code": ["o_proj", "gate_proj", "up_proj", "down_proj"],
}
"""What each adapter changes, by the id of its expert."""


def save_model(kind: str, speaker: Path, folder: Path, *, head: int = 8) -> Path:
    """Save a small random model of a kind, with the tokens of the speaker.

    Args:
        kind: As transformers name it.
        speaker: The folder of a language model.
        folder: Where.
        head: Width of an attention head, of which there are two.
    """
    tokens = AutoTokenizer.from_pretrained(speaker, trust_remote_code=False)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokens),
        "hidden_size": 2 * head,
        "intermediate_size": 4 * head,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": tokens.bos_token_id,
        "eos_token_id": tokens.eos_token_id,
    } | ({"head_dim": head} if kind == "qwen3" else {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.3 * (8 / head) ** 0.5)  # states of the same size
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def save_adapters(model: Path, folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Save plain adapters of a model by PEFT, which no training has made; return their folders."""
    made = {}
    for n, (name, targets) in enumerate(TARGETS.items()):
        base = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False)
        config = LoraConfig(task_type="CAUSAL_LM", r=3 + n, lora_alpha=5, target_modules=targets)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed + n)
            adapted = get_peft_model(base, config)
            for key, p in adapted.named_parameters():
                if "lora_" in key:
                    p.add_(0.3 * torch.randn_like(p))
            adapted.save_pretrained(folder / name)
        made[name] = folder / name
    return made


def continuation(model: Path, adapter: Path | None, prompt: str) -> str:
    """Return what transformers and PEFT themselves go on with, greedily."""
    tokens = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    speaker: Any = AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False)
    if adapter is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT asks transformers what it will no longer say
            speaker = PeftModel.from_pretrained(speaker, adapter)
    ids = tokens(prompt, return_tensors="pt", add_special_tokens=False)
    made = speaker.generate(**ids, max_new_tokens=TOKENS, do_sample=False)
    after = made[0][ids["input_ids"].shape[1] :]
    return str(tokens.decode(after, skip_special_tokens=True))


class AdapterHome:
    """A home of a language model, and the environment that its experts are installed in.

    Args:
        folder: Where both are; its ``site`` has to be on ``sys.path``.
        model: The model's folder.
        task: The task of language models.
        rows: Rows of each expert by id.
    """

    def __init__(
        self, folder: Path, model: Path, *, task: Any, rows: Mapping[str, list[Row]]
    ) -> None:
        self.folder, self.model, self.rows = folder, model, rows
        self.home, self.environment = folder / "home", Environment(folder / "site")
        plan = BackbonePlan(id="small", source=f"hf:{model}", task=task)
        background = [BackgroundRow(text=f"Nothing of note, {n}; else?") for n in range(8)]
        new_backbone(folder / "small", plan, background=background)
        self.environment.install(folder / "small")

    def install(self, name: str, adapter: Path) -> None:
        """Import an adapter as an expert, and install it."""
        project = self.folder / adapter.parent.name / f"red-expert-{name}"
        files = {n: (adapter / n).read_bytes() for n in (CONFIG, WEIGHTS)}
        base = from_folder(package_in(self.folder / "small"))
        with contextlib.suppress(redhost.errors.HarmError):  # it has learnt nothing
            import_adapter(
                project, ExpertPlan(id=name, form="lora"), files, self.rows[name], package=base
            )
        self.environment.install(project)

    def recompose(self) -> None:
        """Compose what is installed."""
        host = redhost.Host.open(self.home, backbone="small", plugins=redhost.plugins.Plugins())
        host.recompose(accept=True)
