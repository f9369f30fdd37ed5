"""The modules that the configuration of an adapter selects, as PEFT selects them.

A configuration may have a thousand names, and a model thousands of modules. So everything is
compiled once, and a name is compared with all plain names at once: with a set, or with `Ends`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from .target_patterns import Ends, Pattern

ALL = "all-linear"
"""Every linear module, to PEFT."""

MAX_NUMBERS = 8
"""Most numbers in a module's name of which one is looked for as that of the layer."""

_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")
_NUMBER = re.compile(r"\.(?=(\d+)\.)")

Names = tuple[str, ...]


class AdapterConfig(Struct, frozen=True, kw_only=True):
    """The keys of ``adapter_config.json`` that determine the computation; as defined by PEFT."""

    peft_type: Literal["LORA"]
    target_modules: str | Names
    r: Annotated[int, Meta(ge=1, le=65536)] = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"
    fan_in_fan_out: bool = False
    rank_pattern: dict[str, Annotated[int, Meta(ge=1, le=65536)]] | None = None
    alpha_pattern: dict[str, float] | None = None
    exclude_modules: str | Names | None = None
    layers_to_transform: int | tuple[int, ...] | None = None
    layers_pattern: str | Names | None = None
    modules_to_save: Names | None = None
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal"] | None = True


class Targets:
    """What a configuration says of each module.

    Args:
        config: The configuration.
    """

    def __init__(self, config: AdapterConfig) -> None:
        layers = config.layers_pattern or ()
        self._config = config
        self._named = _Names(config.target_modules)
        self._excluded = _Names(config.exclude_modules or ())
        self._saved = tuple(f".{x}." for x in config.modules_to_save or ())
        self._layers = Ends((layers,) if isinstance(layers, str) else layers)
        self._ranks = tuple((config.rank_pattern or {}).values())
        self._alphas = tuple((config.alpha_pattern or {}).values())
        self._ranked = Ends(config.rank_pattern or ())
        self._scaled = Ends(config.alpha_pattern or ())

    def include(self, name: str) -> bool | None:
        """Return whether PEFT adapts the linear module of a name (`check_target_module_exists`).

        None if it may take long to find out: then only the tensors show it.
        """
        if any(x in f".{name}." for x in self._saved):
            return False
        named, left = self._named.has(name), self._excluded.has(name)
        if left or named is False:
            return False
        if named is None or left is None:
            return None
        targets, layers = self._config.target_modules, self._config.layers_to_transform
        if isinstance(targets, str) or name in targets or layers is None or layers == ():
            return True
        if len(_NUMBER.findall(name)) > MAX_NUMBERS:
            return None
        index = self._layer_index(name)
        return index in ((layers,) if isinstance(layers, int) else layers)

    def rank(self, name: str) -> int:
        """Return R of a module: that of the first pattern that matches (`get_pattern_key`)."""
        first = self._ranked.first(name)
        return self._config.r if first is None else self._ranks[first]

    def scale(self, name: str, rank: int) -> float:
        """Return the factor of B A of a module of a rank."""
        first = self._scaled.first(name)
        alpha = self._config.lora_alpha if first is None else self._alphas[first]
        return alpha / (math.sqrt(rank) if self._config.use_rslora else rank)

    def _layer_index(self, name: str) -> int | None:
        """Return the layer number in a module's name."""
        if not self._config.layers_pattern:
            match = _LAYER.match(name)
            return int(match[1]) if match else None
        numbers = ((self._layers.first(name[: m.start()]), m) for m in _NUMBER.finditer(name))
        ends = [(first, m.start(), int(m[1])) for first, m in numbers if first is not None]
        return min(ends)[2] if ends else None


class _Names:
    """Names of modules, or ends of them, or a pattern."""

    def __init__(self, names: str | Names) -> None:
        self._pattern = Pattern(names) if isinstance(names, str) and names != ALL else None
        self._ends = None if isinstance(names, str) else frozenset(names)

    def has(self, name: str) -> bool | None:
        """Return whether a module is among them; None where that may take long."""
        if self._pattern is not None:
            return self._pattern.matches(name)
        if self._ends is None:
            return None  # PEFT asks its model
        dots = (place for place, sign in enumerate(name) if sign == ".")
        return name in self._ends or any(name[place + 1 :] in self._ends for place in dots)
