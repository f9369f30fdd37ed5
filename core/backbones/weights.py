"""Which tensors of a checkpoint determine h, and whether all of them were loaded.

A checkpoint was saved from some model: with a head for masked words, without a pooler, with a
classifier. Of these differences only those matter that the last states depend on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...registry.errors import IntegrityError

HINT = "Save the whole model again with save_pretrained, or get its files again."


def load_hint(where: str, kind: str) -> str:
    """Return what to do about a source that transformers cannot load.

    Args:
        where: A folder, a file or a hub name.
        kind: The class of transformers that loads it.
    """
    folder = Path(where)
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        return (
            "Weights in .bin files are pickles, which run code. If you trust the folder, write "
            f'model.safetensors into it: python -c "from transformers import {kind} as A; '
            f"A.from_pretrained('{where}').save_pretrained('{where}')\"."
        )
    return "Give a folder by its path, such as ./my-model; a hub name needs a network."


class Unread(nn.Module):
    """Stands for a module whose output does not reach the last states: returns its input."""

    def forward(self, states: Any = None, *_: object, **__: object) -> Any:
        """Return the input."""
        return states


def drop_unread(model: nn.Module) -> frozenset[str]:
    """Remove the parts of a trunk that its last states do not depend on; return their names.

    A part is a module, or a parameter, directly below the trunk: a pooler, or the embedding of a
    mask. Parts of the stack of blocks stay, as other texts may need them (routed experts).
    """
    # By the graph of a pass and not by names: every kind of model calls its pooler something else.
    reached = _reached(model)
    if reached is None:
        return frozenset()
    unread = set[str]()
    parts: dict[str, nn.Module | Tensor] = dict(model.named_children())
    parts |= dict(model.named_parameters(recurse=False))
    for name, part in parts.items():
        tensors = [part] if isinstance(part, Tensor) else [*part.parameters()]
        if tensors and not any(id(tensor) in reached for tensor in tensors):
            unread.add(name)
            setattr(model, name, Unread() if isinstance(part, nn.Module) else None)
    return frozenset(unread)


def _reached(trunk: nn.Module) -> set[int] | None:
    """Return the ids of the parameters in the graph of the last states; None if none is built."""
    parameters = [p for p in trunk.parameters() if p.is_floating_point()]
    before = [p.requires_grad for p in parameters]
    # A copy with the same tensors: a pass may change a model's settings (BigBird's attention).
    shared = {id(tensor): tensor for tensor in (*trunk.parameters(), *trunk.buffers())}
    model: Any = copy.deepcopy(trunk, shared).eval()
    try:
        with torch.inference_mode(mode=False), torch.enable_grad():
            for p in parameters:
                # Gradients only mark what is reached: none is computed.
                p.requires_grad_(True)
            ids = torch.arange(4, device=parameters[0].device)[None] % model.config.vocab_size
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            return _leaves(states)
    except Exception:  # a model that takes other inputs; it is judged by its own texts
        return None
    finally:
        for p, requires in zip(parameters, before, strict=True):
            p.requires_grad_(requires)


def _leaves(output: Tensor) -> set[int]:
    """Return the ids of the parameters in a tensor's autograd graph."""
    stack: list[Any] = [output.grad_fn]
    seen, leaves = set[Any](), set[int]()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # it accumulates the gradient of a parameter
            leaves.add(id(node.variable))
        stack += (before for before, _ in node.next_functions)
    return leaves


def require_complete(
    trunk: nn.Module, report: Mapping[str, Any], *, prefix: str, unread: Iterable[str], source: str
) -> None:
    """Check that a trunk's tensors are all from its checkpoint, and the checkpoint's all in it.

    Args:
        trunk: The trunk, without its unread parts.
        report: transformers' report on loading: missing, unexpected and mismatched keys.
        prefix: The trunk's name in checkpoints of models with a head, e.g. ``roberta``.
        unread: The names of its unread parts.
        source: The source, for messages.

    Raises:
        IntegrityError: If tensors that h depends on are missing, or have another shape; or if the
            checkpoint has tensors of the trunk for which the configuration has no place.
    """
    # A missing pooler is not missed: h does not depend on it.
    idle = {name.partition(".")[0] for name in unread}

    def local(name: str) -> str:
        return name.removeprefix(f"{prefix}.") if prefix else name

    def read(names: Iterable[str]) -> list[str]:
        return sorted(n for n in names if local(n).partition(".")[0] not in idle)

    parts = {name.partition(".")[0] for name in trunk.state_dict()}
    shapes = {name: (there, here) for name, there, here in report["mismatched_keys"]}
    surplus = [n for n in report["unexpected_keys"] if local(n).partition(".")[0] in parts]
    missing, misfits = read(report["missing_keys"]), read(shapes)
    for names, expected, what in (
        (missing, "all tensors that its configuration names", "none of"),
        (misfits, "tensors of the shapes in its configuration", "another shape of"),
        (sorted(surplus), "no tensors but those that its configuration names", "also"),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004
            sizes = [f"{n} {tuple(shapes[n][0])}" if n in shapes else n for n in names[:3]]
            raise IntegrityError(
                f"the weights of {source}",
                expected=expected,
                found=f"{what} {', '.join(sizes)}{more}",
                hint=HINT,
            )
