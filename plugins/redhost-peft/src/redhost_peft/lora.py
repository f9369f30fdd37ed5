"""LoRA adapters inside the blocks: additions to the output of linear layers.

    y = x Wᵀ + b + s (x Aᵀ) Bᵀ                  LoRA; s = α / R, for rsLoRA α / √R
    y = c ∘ (x Wᵀ + s (x Aᵀ) Bᵀ) + b            DoRA; c = m / ‖W + s B A‖, row by row

While the adapter is active, A and B are treated as linear layers of the encoder, so their rows are
computed in the same tiles (`backbones.tiles`). Biases and fully saved modules are replaced by the
adapter's. Operations and their order are those of PEFT, so results are bitwise identical.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial

import safetensors.torch
import torch
from torch import Tensor, nn

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.encoder import TextEncoder, blocks_of
from redhost.core.backbones.interventions import Hook, hooked
from redhost.core.backbones.packs import Pack
from redhost.core.backbones.tiles import tiled
from redhost.core.bus.experts import Expert, Space
from redhost.registry.package.checked import Refused, Violation, listed, refuse
from redhost.registry.package.manifest import ExpertManifest
from redhost.registry.package.safetensors_check import sha256_hex, show

from .package import HEAD, read_packaged
from .peft_adapter import (
    CONFIG,
    START,
    WEIGHTS,
    Adapter,
    check_targets,
    head_misfit,
    misfit,
    read_adapter,
    saved_module,
)
from .rows import RowPasses, by_rows, shares_passes


class LoraLayer(nn.Module):
    """The addition of an adapter to one linear layer.

    Args:
        A: ``(R, in)``.
        B: ``(out, R)``.
        b: The bias of B, ``(out,)``.
        m: The magnitudes of DoRA, ``(out,)``.
        scale: s.
    """

    def __init__(
        self, *, A: Tensor, B: Tensor, b: Tensor | None, m: Tensor | None, scale: float
    ) -> None:
        super().__init__()
        # Multiplying by a power of two is exact: a fused sum that rounds once has the same bits.
        self.scale, self.is_exact = scale, math.frexp(scale)[0] == 0.5  # noqa: PLR2004
        self.A = nn.Linear(A.shape[1], A.shape[0], bias=False)
        self.B = nn.Linear(B.shape[1], B.shape[0], bias=b is not None)
        for linear, weight in ((self.A, A), (self.B, B)):
            linear.weight = nn.Parameter(weight.t().contiguous().t())  # as in `Tiles`
        if b is not None:
            self.B.bias = nn.Parameter(b)
        self.m = None if m is None else nn.Parameter(m)

    def magnitude(self, weight: Tensor) -> Tensor | None:
        """Return c ``(1, out)`` for W ``(out, in)``; None without magnitudes."""
        if self.m is None:
            return None
        with torch.no_grad():
            eye = torch.eye(weight.shape[1], device=weight.device)
            moved = weight + self.scale * self.B(self.A(eye)).T
            norm: Tensor = torch.linalg.norm(moved, dim=1)
            return (self.m / norm).view(1, -1)

    def forward(self, x: Tensor, output: Tensor, bias: Tensor | None, c: Tensor | None) -> Tensor:
        """Return y ``(…, out)`` for x ``(…, in)`` and the frozen layer's output for x."""
        return self._sum(self.B(self.A(x)), output, bias, c)

    def add_to(
        self, output: Tensor, x: Tensor, *, tile: int, bias: Tensor | None, c: Tensor | None
    ) -> None:
        """Turn the frozen layer's output ``(N, out)`` into y in place; N is a tile at most.

        Gradients are not supported.
        """
        inner = tiled(x, tile, self.A.weight, None)
        added = tiled(inner, tile, self.B.weight, self.B.bias)
        if c is None and self.is_exact:
            output.add_(added, alpha=self.scale)
        else:
            output.copy_(self._sum(added, output, bias, c))

    def _sum(self, added: Tensor, output: Tensor, bias: Tensor | None, c: Tensor | None) -> Tensor:
        if c is None and self.is_exact:
            return torch.add(output, added, alpha=self.scale)
        if c is None:
            return output + added * self.scale
        product = output if bias is None else output - bias
        return output + ((c - 1) * product + c * added * self.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lora:
    """An adapter in one encoder.

    Attributes:
        layers: The additions, each with the encoder's module and c ``(1, out)``.
        own: Modules, names of their parameters, and the adapter's replacements for these.
        lowest: The lowest block that it changes.
        key: The digest of the adapter; experts with the same adapter share its cached rows.
    """

    layers: Sequence[tuple[LoraLayer, nn.Module, Tensor | None]]
    own: Sequence[tuple[nn.Module, str, nn.Parameter]]
    lowest: int
    key: str
    changes_h: bool = field(default=True, init=False)
    rowwise: bool = field(default=True, init=False)

    @contextmanager
    def apply(self, encoder: TextEncoder) -> Iterator[None]:
        """Act in every pass of a ``with`` block."""
        with encoder.lock, ExitStack() as stack:
            for module, name, parameter in self.own:
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, parameter)
            stack.enter_context(encoder.with_linears(self._products))
            stack.enter_context(hooked(encoder, *self._hooks))
            yield

    # Made once: a text that is generated applies the adapter for every token.
    @cached_property
    def _products(self) -> tuple[nn.Linear, ...]:
        return tuple(linear for layer, _, _ in self.layers for linear in (layer.A, layer.B))

    @cached_property
    def _hooks(self) -> tuple[tuple[nn.Module, Hook], ...]:
        return tuple((module, partial(_add, layer, c)) for layer, module, c in self.layers)

    def shared_passes(self, encoder: TextEncoder) -> RowPasses | None:
        """Return how texts share passes with those of other adapters; None if they cannot."""
        return RowPasses(encoder) if shares_passes(encoder) else None

    @property
    def acts_on_rows(self) -> bool:
        """Whether other texts may share its pass: no parameter of the encoder is replaced."""
        return not self.own

    def on_rows(
        self, encoder: TextEncoder, pack: Pack, acts: Sequence[Lora | None]
    ) -> AbstractContextManager[None]:
        """Return the context in which each text of a pack has an adapter of its own, or none."""
        return by_rows(encoder, pack, acts)


def _add(
    layer: LoraLayer, c: Tensor | None, module: nn.Module, inputs: tuple[Tensor], output: Tensor
) -> Tensor:
    made: Tensor = layer(inputs[0], output, module.bias, c)
    return made


class LoraExpert(Expert):
    """An expert that is an adapter: it adds h' − h, or predicts labels of its own from h'.

    Args:
        adapter: The adapter.
        tensors: Its tensors by name.
        key: Its digest.
        space: ``hidden``, or ``labels``.
        labels: The labels it may predict.
        head: W ``(L, D)`` and b ``(L,)`` if it writes `labels`.
    """

    def __init__(
        self,
        adapter: Adapter,
        tensors: Mapping[str, Tensor],
        *,
        key: str,
        space: Space,
        labels: Sequence[str],
        head: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(space=space, labels=labels)
        self.adapter, self.key = adapter, key

        def part(module: str, role: str) -> Tensor:
            return tensors[adapter.tensors[module][role]].to(torch.float32)

        self.additions = {
            module: LoraLayer(
                A=part(module, "A"),
                B=part(module, "B"),
                b=part(module, "b") if "b" in adapter.tensors[module] else None,
                m=part(module, "m") if "m" in adapter.tensors[module] else None,
                scale=layer.scale,
            )
            for module, layer in adapter.layers.items()
        }
        self.layers = nn.ModuleList(self.additions.values())
        self.biases = nn.ParameterList(part(module, "bias") for module in adapter.biases)
        self.saved = nn.ParameterList(
            tensors[f"{START}{name}"].to(torch.float32) for name in adapter.saved
        )
        self.W = None if head is None else nn.Parameter(head["W"].to(torch.float32))
        self.b = None if head is None else nn.Parameter(head["b"].to(torch.float32))

    def tensors(self) -> dict[str, Tensor]:
        """Return the adapter's A and B under PEFT's names: all tensors of plain LoRA."""
        made = dict[str, Tensor]()
        for module, layer in self.additions.items():
            for role, linear in (("A", layer.A), ("B", layer.B)):
                made[self.adapter.tensors[module][role]] = linear.weight.detach().contiguous()
        return made

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ ``(B, out)`` for its bus input: W z' + b for z' ``(B, D)``, or h' − h itself."""
        return z if self.W is None else nn.functional.linear(z, self.W, self.b)

    def intervention(self, backbone: Backbone) -> Lora:
        """Return the intervention of the adapter in a backbone.

        Raises:
            ContractError: If the adapter does not fit the backbone.
        """
        trunk, linears = backbone.trunk, linears_of(backbone.trunk.model)
        refuse(check_targets(self.adapter, linears, backbone=backbone.name))
        prefix, modules = self.adapter.prefix(linears) or "", dict(trunk.model.named_modules())
        on_cpu = trunk.device.type == "cpu"  # the expert stays on the CPU, where the bus runs
        layers = []
        for name, own in self.additions.items():
            module = modules[name.removeprefix(prefix)]
            layer = own if on_cpu else copy.deepcopy(own).to(trunk.device)
            weight = module.get_parameter("weight")
            c = layer.magnitude(weight if isinstance(module, nn.Linear) else weight.T)
            layers.append((layer, module, c))
        refuse(self._misfits(prefix, trunk.model))
        whole = list[tuple[nn.Module, str, nn.Parameter]]()
        for name, parameter in self._parameters_of_its_own():
            owner, _, part = name.removeprefix(prefix).rpartition(".")
            found = getattr(modules.get(owner), part, None)
            if not isinstance(found, nn.Parameter) or found.shape != parameter.shape:
                expected = f"a module {owner!r} with a {part} of {show(tuple(parameter.shape))}"
                given = show(tuple(found.shape)) if isinstance(found, Tensor) else "none"
                raise Refused(misfit(name, expected, given))
            if isinstance(modules[owner], nn.Linear) and part == "weight":
                parameter.data = parameter.data.t().contiguous().t()  # as in `Tiles`
            placed = parameter if on_cpu else nn.Parameter(parameter.to(trunk.device))
            whole.append((modules[owner], part, placed))
        changed = (*self.adapter.layers, *(name for name, _ in self._parameters_of_its_own()))
        names = [n.removeprefix(prefix) for n in changed]
        return Lora(layers=layers, own=whole, lowest=_lowest(trunk, names), key=self.key)

    def _parameters_of_its_own(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that replace those of the encoder, under the adapter's names."""
        yield from zip((f"{n}.bias" for n in self.adapter.biases), self.biases, strict=True)
        yield from zip(self.adapter.saved, self.saved, strict=True)

    def _misfits(self, prefix: str, model: nn.Module) -> Iterator[Violation]:
        """Yield a violation for each fully saved module that the encoder, or the file, lacks."""
        adapter, modules = self.adapter, {f"{prefix}{n}" for n, _ in model.named_modules()}
        for name in adapter.saved:
            module = saved_module(adapter.config, name)
            if module is not None and module not in modules:
                yield head_misfit(module, backbone=type(model).__name__)
        parts = (f"{prefix}{n}" for n, _ in model.named_parameters())
        whole = {n for n in parts if saved_module(adapter.config, n)}
        if without := sorted(whole - adapter.saved.keys()):
            expected = f"tensors for every module that {CONFIG} saves"
            yield misfit("", expected, f"none for {listed(without)}")


def linears_of(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return the linear modules that adapters may target, by name, each with (out, in).

    GPT-2's Conv1D modules store their weights transposed.
    """
    shapes = dict[str, tuple[int, int]]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            shapes[name] = (module.out_features, module.in_features)
        elif type(module).__name__ == "Conv1D" and isinstance(module.weight, Tensor):
            shapes[name] = (module.weight.shape[1], module.weight.shape[0])
    return shapes


def _lowest(trunk: TextEncoder, names: Sequence[str]) -> int:
    """Return the lowest block with one of these modules; 0 if one is outside all blocks."""
    path, _ = blocks_of(trunk.model)
    if not all(n.startswith(f"{path}.") for n in names):
        return 0
    return min(int(n.removeprefix(f"{path}.").partition(".")[0]) for n in names)


def build_lora(manifest: ExpertManifest, files: Mapping[str, bytes]) -> LoraExpert:
    """Build the expert of an adapter from checked bytes.

    Args:
        manifest: The expert's manifest, of the form ``lora``.
        files: The files of its package by name.

    Raises:
        ContractError: If they are not what an adapter's package has.
    """
    adapter = read_packaged(manifest, files).or_refuse()
    expert = _build(
        adapter,
        {CONFIG: files[CONFIG], WEIGHTS: files[manifest.weights.file]},
        space=manifest.writes.space,
        labels=manifest.labels,
        head=safetensors.torch.load(files[HEAD]) if HEAD in files else None,
    )
    expert.temperature = manifest.temperature
    return expert


def lora_from_files(
    files: Mapping[str, bytes],
    *,
    who: str,
    space: Space,
    labels: Sequence[str],
    head: Mapping[str, Tensor] | None = None,
) -> LoraExpert:
    """Build an expert from an adapter's two files.

    Args:
        files: The files `CONFIG` and `WEIGHTS`.
        who: Name of the adapter in messages.
        space: ``hidden``, or ``labels``.
        labels: The labels it may predict.
        head: See `LoraExpert`.

    Raises:
        ContractError: If the files are not a valid adapter.
    """
    adapter = read_adapter(files[CONFIG], files[WEIGHTS]).unwrap(who)
    return _build(adapter, files, space=space, labels=labels, head=head)


def _build(
    adapter: Adapter,
    files: Mapping[str, bytes],
    *,
    space: Space,
    labels: Sequence[str],
    head: Mapping[str, Tensor] | None,
) -> LoraExpert:
    """Build an expert from an adapter that was read from its two files."""
    config, weights = files[CONFIG], files[WEIGHTS]
    return LoraExpert(
        adapter,
        safetensors.torch.load(weights),
        key=adapter_key(config, weights),
        space=space,
        labels=labels,
        head=head,
    )


def adapter_key(config: bytes, weights: bytes) -> str:
    """Return the key of an adapter's rows in the feature cache."""
    return f"adapter {sha256_hex((sha256_hex(config) + sha256_hex(weights)).encode())}"
