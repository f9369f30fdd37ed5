"""Grafted module: a part that reads one layer of a host network and writes into another.

    host:  … → h_source → … → h_target ← output_graft(h_target, part(input_graft(h_source))) → …

Source: seed 003, section "Grafting Semantics". The host's code is not changed: forward hooks, which
are registered for the duration of a call only, read the source and write to the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from .input_graft import InputGraft
from .naming import check_name
from .output_graft import OutputGraft
from .widths import Widths, check_width, widths_of

__all__ = ["GraftedModule"]


class GraftedModule(nn.Module):
    """A host with a grafted part, called like the host.

    Not thread-safe: if two threads call the same host, the hooks of one call act on both.

    Args:
        host: Any module; its `source` and `target` layers return tensors.
        part: A module from the input graft's width to the output graft's.
        input_graft: The layer that the part reads.
        output_graft: The layer that it writes to: the same layer, or one that runs later.

    Raises:
        ValueError: The host has no such layer, or widths differ.
    """

    def __init__(
        self,
        *,
        host: nn.Module,
        part: nn.Module,
        input_graft: InputGraft,
        output_graft: OutputGraft,
    ) -> None:
        super().__init__()
        layers = [name for name, _ in host.named_modules() if name]
        for name in (input_graft.source, output_graft.target):
            check_name(name, layers, what="layer")
        read = input_graft.output_width
        expected = Widths(input=read, output=output_graft.part_width)
        found = widths_of(part) or Widths(input=read, output=read)
        if found != expected:
            raise ValueError(
                f"GraftedModule takes a part from width {expected.input} to {expected.output}, "
                f"found {type(part).__name__} from width {found.input} to {found.output}"
            )
        self.host, self.part = host, part
        self.input_graft, self.output_graft = input_graft, output_graft
        self.host_width = _stated_input(host)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Graft for the duration of a ``with`` block, in which the host may be called in any way.

        Raises:
            ValueError: The target ran before the source, or not at all.
        """
        source, target = self.input_graft.source, self.output_graft.target
        taps: dict[str, Tensor] = {}
        written: list[str] = []

        def tap(_layer: nn.Module, _inputs: object, output: object) -> None:
            taps[source] = _tensor(output, source)

        def write_back(_layer: nn.Module, _inputs: object, output: object) -> Tensor:
            host = _tensor(output, target)
            if source not in taps:
                raise ValueError(f"layer {source!r} has not run when {target!r} does; read earlier")
            written.append(target)
            y: Tensor = self.output_graft(host, self.part(self.input_graft(taps)))
            return y

        hooks = [self.host.get_submodule(source).register_forward_hook(tap)]
        try:
            hooks.append(self.host.get_submodule(target).register_forward_hook(write_back))
            yield
            if not written:
                raise ValueError(
                    f"the host's pass never ran layer {target!r}, so nothing was added"
                )
        finally:
            for hook in hooks:
                hook.remove()

    def forward(self, *inputs: object, **options: object) -> object:
        """Return the host's output for these arguments, with the part grafted.

        If the host states its width, it is checked on the first argument, ``(..., D_in)``.
        """
        if self.host_width is not None and inputs and isinstance(inputs[0], Tensor):
            check_width(inputs[0], self.host_width, who="GraftedModule's host")
        with self.attached():
            return self.host(*inputs, **options)


def _stated_input(host: nn.Module) -> int | None:
    try:
        widths = widths_of(host)
    except ValueError:  # Most hosts take tokens or images and state no width.
        return None
    return None if widths is None else widths.input


def _tensor(output: object, layer: str) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(
            f"layer {layer!r} gives {type(output).__name__}, a graft takes a tensor; "
            "choose a layer inside it"
        )
    return output
