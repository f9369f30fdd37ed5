"""What adapters, mixed ones and PEFT's own mixtures make of texts, from states that are known.

All adapters act in the same top blocks, so what is below them is computed once for a text.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import redhost
from red_lab.adapters.authors import Authors
from red_lab.newsgroups import encoder as folder_of_encoder
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.interventions.graft import from_states, moved_by, states_below
from redhost.core.backbones.interventions.lora import LoraExpert, lora_from_files
from redhost.registry.package.peft_adapter import CONFIG, WEIGHTS

__all__ = ["Passes", "arrow", "expert_of", "merged", "shuffled"]

Files = Mapping[str, bytes]


def files_of(package: Path) -> dict[str, bytes]:
    """Return PEFT's two files of a package."""
    return {name: (package / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def expert_of(files: Files) -> LoraExpert:
    """Return an adapter without a head."""
    return lora_from_files(files, who="an adapter", space="hidden", labels=()).requires_grad_(False)


@dataclass(eq=False)
class Passes:
    """The passes above the states that all adapters start from.

    Attributes:
        backbone: The backbone.
        acts: Any adapter of the study: they start alike.
    """

    backbone: redhost.Backbone
    acts: Intervention
    known: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def below(self, ids: Tensor) -> Tensor:
        """Return the states ``(B, T, D)`` of tokens ``(B, T)``, remembered text by text."""
        rows = [tuple(row) for row in ids.tolist()]
        if any(row not in self.known for row in rows):
            states = states_below(self.backbone.trunk, ids, self.acts)
            assert states is not None  # noqa: S101  (nobody adapts the first block)
            self.known |= dict(zip(rows, states, strict=True))
        return torch.stack([self.known[row] for row in rows])

    def moved(self, texts: Sequence[str], acts: Intervention) -> Tensor:
        """Return h' ``(N, D)`` of an adapter."""
        trunk = self.backbone.trunk
        return self._encode(texts, lambda ids: moved_by(trunk, ids, acts, states=self.below(ids)))

    def through(self, texts: Sequence[str], encoder: redhost.authoring.TextEncoder) -> Tensor:
        """Return the same of another model above the blocks that all share."""

        def run(ids: Tensor) -> Tensor:
            with from_states(encoder, self.below(ids), block=self.acts.lowest - 1):
                return encoder.pool(encoder.hidden_states(ids))

        return self._encode(texts, run)

    def _encode(self, texts: Sequence[str], compute: Callable[[Tensor], Tensor]) -> Tensor:
        return self.backbone.trunk.encode(texts, compute=compute, alone=False)


def shuffled(files: Files, seed: int) -> dict[str, bytes]:
    """Return an adapter of the same shapes whose numbers are dealt at random within each tensor."""
    generator = torch.Generator().manual_seed(seed)
    made = {
        name: t.flatten()[torch.randperm(t.numel(), generator=generator)].reshape(t.shape)
        for name, t in safetensors.torch.load(files[WEIGHTS]).items()
    }
    return {CONFIG: files[CONFIG], WEIGHTS: safetensors.torch.save(made)}


def _all_in_peft(authors: Authors) -> Any:
    """Return PEFT's model of the encoder with every adapter in it, by its name."""
    from peft import PeftModel
    from transformers import AutoModel

    first, *others = authors.packages.items()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        model = AutoModel.from_pretrained(folder_of_encoder(), dtype=torch.float32)
        made = PeftModel.from_pretrained(model, first[1], adapter_name=first[0])
        for name, package in others:
            made.load_adapter(package, adapter_name=name)
    return made.eval()


def merged(authors: Authors, how: str) -> dict[str, bytes]:
    """Return all adapters as one, merged by PEFT with equal weights.

    Args:
        authors: Whose.
        how: A `combination_type` of PEFT.
    """
    made, names = _all_in_peft(authors), list(authors.packages)
    options = {} if how == "linear" else {"density": 0.2 if "ties" in how else 0.5}
    torch.manual_seed(0)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        made.add_weighted_adapter(
            names, [1 / len(names)] * len(names), "merged", combination_type=how, **options
        )
        made.save_pretrained(folder, selected_adapters=["merged"])
        found = files_of(Path(folder, "merged"))
    config = {k: v for k, v in json.loads(found[CONFIG]).items() if k != "base_model_name_or_path"}
    return {CONFIG: json.dumps(config).encode(), WEIGHTS: found[WEIGHTS]}


def arrow(authors: Authors) -> redhost.authoring.TextEncoder:
    """Return the encoder whose layers PEFT's Arrow routes token by token, as it comes."""
    from peft import ArrowConfig, create_arrow_model
    from transformers import AutoModel

    trunk = authors.context.backbone.trunk
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        model = AutoModel.from_pretrained(folder_of_encoder(), dtype=torch.float32)
        model.pooler = None  # Arrow takes names for ends of names, and would route it as well
        paths = [str(path) for path in authors.packages.values()]
        chosen = ArrowConfig(rng_seed=0)
        made = create_arrow_model(
            base_model=model, task_specific_adapter_paths=paths, arrow_config=chosen
        )
    return redhost.authoring.TextEncoder(
        model=made.eval().base_model.model,
        tokenizer=trunk.tokenizer,
        pooling=trunk.pooling,
        max_tokens=trunk.max_tokens,
        features=trunk.features,
    )
