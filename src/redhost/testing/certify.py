"""The certification kit: test helpers for authors of experts and plugins.

Public as `redhost.testing`. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.label_sets import DECLINED

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.bus.bus import Bus
    from ..core.model.composed import ComposedModel


def assert_bus_laws(bus: Bus, h: Tensor, *, tolerance: float = 1e-5) -> None:
    """Check the algebraic laws of a bus on features ``(N, D)``.

    With α = 0 the answer is bitwise identical to the backbone's. With one column at weight 1 it is
    that expert's. If the task answers distributions, every answer is one. A batch equals its rows.

    Args:
        bus: The bus.
        h: Features, at least two rows.
        tolerance: Largest deviation where batched products may change bits.

    Raises:
        AssertionError: Names the broken laws.
    """
    import torch

    with torch.inference_mode():
        z = bus.norm(h)
        p, alpha = bus(h)
        nothing = bus.probabilities(h, z, torch.zeros_like(alpha))
        only = torch.eye(len(bus.columns)).to(alpha)
        rows = torch.cat([bus(h[i : i + 1])[0] for i in range(len(h))])
        laws = {
            "answers are distributions": bus.task.head.places((), bus.labels) is None
            or torch.allclose(p.sum(-1), torch.ones(len(h)), atol=tolerance),
            "α = 0 is the backbone, bit for bit": torch.equal(nothing, _backbone(bus, h)),
            "a batch equals its rows": torch.allclose(p, rows, atol=tolerance),
            "mixing one column is that column": all(
                torch.allclose(
                    bus.alone(h, z, k), bus.mixture(h, z, only[k].expand_as(alpha)), atol=tolerance
                )
                for k in range(len(bus.columns))
            ),
        }
    broken = [law for law, holds in laws.items() if not holds]
    assert not broken, f"broken laws: {', '.join(broken)}"  # noqa: S101


def assert_same_answers(one: ComposedModel, two: ComposedModel, texts: Sequence[str]) -> None:
    """Check that the answers of two compositions are bitwise identical.

    Raises:
        AssertionError: Names the first text with different answers.
    """
    import torch

    with torch.inference_mode():
        p, _ = one.bus(one.backbone.encode(texts))
        q, _ = two.bus(two.backbone.encode(texts))
    assert one.bus.labels == two.bus.labels, "other labels"  # noqa: S101
    differ = [t for t, a, b in zip(texts, p, q, strict=True) if not torch.equal(a, b)]
    assert not differ, f"other probabilities for {differ[0]!r}"  # noqa: S101


def tiny_backbone(folder: str | Path, *, seed: int = 0, width: int = 16) -> Path:
    """Write an ordinary Hugging Face folder: a tiny random Qwen3 with characters as tokens.

    Args:
        folder: The folder to write.
        seed: The seed of the weights.
        width: D.

    Returns:
        The folder, for ``redhost.Backbone.load(f"hf:{folder}")``.
    """
    import torch
    from transformers import Qwen3Config, Qwen3Model

    folder, tokenizer = Path(folder), _character_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3Model(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=width,
                intermediate_size=2 * width,
                num_hidden_layers=3,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=8,
                max_position_embeddings=64,
            )
        )
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.3)  # features that differ between texts
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _character_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    signs = ["<pad>", "<unk>", *(chr(c) for c in range(32, 127))]
    characters: Any = Tokenizer(WordLevel({s: i for i, s in enumerate(signs)}, unk_token=signs[1]))
    characters.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    return make(
        tokenizer_object=characters, unk_token=signs[1], pad_token=signs[0], model_max_length=64
    )


def _backbone(bus: Bus, h: Tensor) -> Tensor:
    """Return the answers of the backbone alone, ``(N, L)``."""
    p = h.new_zeros(len(h), bus.answers)
    if bus.classifier is not None:
        h = bus.layout.base(h)
        p[:, : bus.classifier.shape[0]] = bus.task.head.output(h @ bus.classifier.T)
    elif bus.labels[0] == DECLINED:
        p[:, 0] = 1.0
    return p
