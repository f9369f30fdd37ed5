"""A LoRA adapter as written by PEFT: the contents of its two files, read without torch.

    adapter_config.json         the modules, ranks and scales
    adapter_model.safetensors   base_model.model.PREFIX MODULE . lora_A.weight (R, in) …
                                and every tensor of the modules that are saved whole

A key of the configuration that would change the computation in an unsupported way is refused by
name, unless it is off: null, false or empty.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from redhost.registry.errors import suggest
from redhost.registry.package.checked import (
    Refused,
    Violation,
    checked,
    listed,
    refuse,
    unique_keys,
)
from redhost.registry.package.safetensors_check import (
    LARGEST,
    TensorInfo,
    check_finite,
    read_header,
    show,
)

from .adapter_targets import AdapterConfig, Names, Targets
from .target_patterns import Pattern

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

Linears = Mapping[str, tuple[int, ...]]
"""Name of a linear module → (out, in)."""

MAX_CONFIG = 2**20
"""Most bytes of a configuration; PEFT writes one to ten thousand."""

MAX_NAME, MAX_NAMES = 200, 1000
"""Most characters of a key of `rank_pattern` and the like, and most entries of such a list."""

MAX_FEW = 64
"""Most entries of `modules_to_save` and `layers_pattern`, and most characters of the latter's."""

_PLAIN = re.compile(r"\^?(?:[\w.-]|\\\.)+")
"""A plain module name; PEFT treats it as a pattern."""

_MODULE = re.compile(rf"[\w.-]{{1,{MAX_NAME}}}")

START = "base_model.model."
"""The prefix that PEFT adds to every name."""

INERT = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "peft_version"),
        *("inference_mode", "lora_dropout", "megatron_core", "qalora_group_size"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
    }
)
"""Keys that do not affect what a trained adapter computes; a name identifies no backbone."""

_PARTS = {
    "lora_A.weight": "A",
    "lora_B.weight": "B",
    "lora_B.bias": "b",
    "lora_magnitude_vector": "m",
    "lora_magnitude_vector.weight": "m",
    "base_layer.bias": "bias",
    "bias": "bias",
}
"""Suffix of a tensor's name → its role."""

_VALUES = {
    "bias": "'none', 'all' or 'lora_only'",
    "init_lora_weights": "one that leaves the backbone's weights alone: true or false, 'gaussian', "
    "'eva' or 'orthogonal'",
}
"""The allowed values of a key, for messages that msgspec does not give."""

Shapes = Mapping[str, tuple[int, ...]]
"""Name of a tensor of the model → its shape."""

_HINT = "Only LoRA, rsLoRA and DoRA of linear layers can be imported; see the author's guide."
FOREIGN = "Train the adapter on this backbone, or install the backbone it was trained on."
_REBUILD = "Save the adapter again with PEFT."


@dataclass(frozen=True, kw_only=True)
class AdapterLayer:
    """The change that an adapter makes to one module.

    Attributes:
        shape: (out, in) of the module.
        rank: R.
        scale: The factor of B A.
    """

    shape: tuple[int, int]
    rank: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter whose configuration and tensors are consistent.

    Attributes:
        config: Its configuration.
        layers: By the module's name in the adapter.
        biases: Module → number of entries, for modules whose bias it contains.
        tensors: Module → role (A, B, b, m or bias) → the name of the tensor.
        saved: Tensor of a module that is saved whole, by its name in the model → its shape.
    """

    config: AdapterConfig
    layers: Mapping[str, AdapterLayer]
    biases: Mapping[str, int]
    tensors: Mapping[str, Mapping[str, str]]
    saved: Shapes

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max(layer.rank for layer in self.layers.values())

    def prefix(self, linears: Collection[str]) -> str | None:
        """Return the prefix of a backbone's names in the adapter: empty, or one word.

        None if the adapter's modules are not linear modules of the backbone with either prefix.
        """
        first = min(self.layers)
        for prefix in ("", f"{first.partition('.')[0]}."):
            if all(n.startswith(prefix) and n[len(prefix) :] in linears for n in self.layers):
                return prefix
        return None


@checked
def read_adapter(config: bytes, weights: bytes) -> Adapter:
    """Read an adapter and check everything that needs no backbone.

    Args:
        config: The bytes of ``adapter_config.json``.
        weights: The bytes of ``adapter_model.safetensors``.

    Returns:
        The adapter, or its violations.
    """
    parsed = parse_config(config).or_refuse()
    header = read_header(weights).or_refuse()
    saved = _saved(header, parsed)
    tensors, strange = _by_module({n: x for n, x in header.items() if n not in saved})
    refuse(strange)
    layers, biases, targets = dict[str, AdapterLayer](), dict[str, int](), Targets(parsed)
    violations = list[Violation]()
    for module, names in sorted(tensors.items()):
        info = {role: header[name] for role, name in names.items()}
        if info.keys() != {"bias"}:
            layer = _layer(module, info, parsed, targets)
            violations += layer if isinstance(layer, list) else []
            if isinstance(layer, AdapterLayer):
                layers[module] = layer
        if "bias" in info:
            biases[module] = math.prod(info["bias"].shape)
    violations += _biases(parsed, layers, biases)
    whole = {name.removeprefix(START): header[name] for name, read in saved.items() if read}
    violations += (
        _wrong("weights_tensors", f"{WEIGHTS} {name}", "floats", info.dtype, _REBUILD)
        for name, info in whole.items()
        if info.dtype == "I64"
    )
    refuse(violations)
    if not layers:
        raise Refused(_wrong("weights_tensors", WEIGHTS, "lora_A and lora_B", "none", _REBUILD))
    refuse(check_finite(weights, header, largest=LARGEST))
    shapes = {name: info.shape for name, info in whole.items()}
    return Adapter(config=parsed, layers=layers, biases=biases, tensors=tensors, saved=shapes)


@checked
def parse_config(data: bytes) -> AdapterConfig:
    """Read ``adapter_config.json``; refuse by name keys that would change the computation."""
    if len(data) > MAX_CONFIG:
        raise _config("file", f"at most {MAX_CONFIG:,} bytes", f"{len(data):,}")
    try:
        raw = json.loads(
            data.decode(), object_pairs_hook=unique_keys
        )  # given bytes, it accepts UTF-16
        json.dumps(raw, ensure_ascii=False).encode()  # half a surrogate pair ends who prints it
    except (ValueError, RecursionError) as e:
        raise _config("file", "a JSON object", str(e)) from e
    if not isinstance(raw, dict):
        raise _config("file", "a JSON object", type(raw).__name__)
    if raw.get("peft_type") != "LORA":
        raise _config("peft_type", "'LORA'", repr(raw.get("peft_type")))
    accepted = {*AdapterConfig.__struct_fields__, *INERT}
    on = [
        key
        for key, value in raw.items()
        if key not in accepted and value not in (None, False, [], {})
    ]
    if on:
        hint = f"{suggest(min(on), accepted)}{_HINT}"
        refuse(
            _wrong("adapter_config", f"{CONFIG} {key}", "nothing", _shown(raw[key]), hint)
            for key in sorted(on)
        )
    given = {key: value for key, value in raw.items() if key in AdapterConfig.__struct_fields__}
    try:
        config = msgspec.convert(given, AdapterConfig)
    except msgspec.ValidationError as e:
        what, _, path = str(e).partition(" - at `")
        key = path.rstrip("`").lstrip("$.").partition("[")[0] or "file"
        expected = _VALUES.get(key) or what.removeprefix("Expected ").partition(", got")[0]
        raise _config(key, expected, _shown(raw.get(key))) from e
    refuse(_numbers(config))
    refuse(_patterns(config))
    refuse(_refused_by_peft(config))
    return config


def check_targets(adapter: Adapter, linears: Linears, *, backbone: str) -> Iterator[Violation]:
    """Yield the reasons why an adapter does not fit a backbone.

    Args:
        adapter: The adapter.
        linears: The backbone's linear modules.
        backbone: The backbone's name, for messages.
    """
    prefix = adapter.prefix(linears)
    if prefix is None:
        unknown = [n for n in adapter.layers if n not in linears]
        expected = f"linear modules of backbone {backbone!r}, such as {listed([*linears][:2])}"
        yield _wrong("adapter_misfit", WEIGHTS, expected, listed(unknown), FOREIGN)
        return
    modules = {n.removeprefix(prefix): layer.shape for n, layer in adapter.layers.items()}
    yield from check_modules(modules, linears, backbone=backbone)
    selected = Targets(adapter.config)
    targets = {n for n in linears if selected.include(prefix + n)}
    if without := sorted(targets - modules.keys()):
        expected = f"tensors for every module that {CONFIG} targets"
        yield _wrong("adapter_misfit", WEIGHTS, expected, f"none for {listed(without)}", _REBUILD)
    yield from _heads(adapter, prefix, backbone=backbone)
    saved = {n.removeprefix(prefix): shape for n, shape in adapter.saved.items()}
    yield from check_saved(saved, linears, backbone=backbone)
    whole = (n for n in linears if saved_module(adapter.config, f"{prefix}{n}.weight"))
    if without := sorted(n for n in whole if f"{n}.weight" not in saved):
        expected = f"tensors for every module that {CONFIG} saves"
        yield _wrong("adapter_misfit", WEIGHTS, expected, f"none for {listed(without)}", _REBUILD)
    sizes = ((n.removeprefix(prefix), size) for n, size in adapter.biases.items())
    for name, size in sizes:
        if name in linears and linears[name][0] != size:
            yield misfit(f"{name} bias", f"({linears[name][0]})", f"({size})")


def check_modules(modules: Linears, linears: Linears, *, backbone: str) -> Iterator[Violation]:
    """Yield a violation for each module that a backbone lacks, or has in another shape."""
    close = None  # of the first alone: each is compared with every module
    for name, shape in sorted(modules.items()):
        if name not in linears:
            expected = f"a linear module of backbone {backbone!r}"
            close = suggest(name, linears) if close is None else ""
            yield misfit(name, expected, f"no such module. {close}".strip())
        elif tuple(linears[name]) != tuple(shape):
            yield misfit(
                name,
                f"{show(tuple(linears[name]))}, as in backbone {backbone!r}",
                show(tuple(shape)),
            )


def check_saved(saved: Shapes, linears: Linears, *, backbone: str) -> Iterator[Violation]:
    """Yield a violation for each saved tensor of a linear module that has it in another shape.

    Other modules of a backbone, embeddings and norms, are checked when it is opened. GPT-2's
    weights are transposed, so both orders are accepted.
    """
    for name, shape in sorted(saved.items()):
        module, _, part = name.rpartition(".")
        if (sizes := linears.get(module)) is None:
            continue
        fits: dict[str, tuple[tuple[int, ...], ...]] = {
            "weight": (tuple(sizes), tuple(reversed(sizes))),
            "bias": ((sizes[0],),),
        }
        if shape not in fits.get(part, ()):
            expected = " or ".join(map(show, fits.get(part, ()))) or "no such tensor"
            yield misfit(name, f"{expected}, as in backbone {backbone!r}", show(shape))


def misfit(name: str, expected: str, found: str) -> Violation:
    """Return the violation of a tensor or module that the backbone has otherwise, or not at all."""
    return _wrong("adapter_misfit", f"{WEIGHTS} {name}".strip(), expected, found, FOREIGN)


def head_misfit(module: str, *, backbone: str) -> Violation:
    """Return the violation of a saved module that no backbone has: its own model's head."""
    hint = (
        f"A head comes from the package's labels: take the tensors of {module!r} out of {WEIGHTS}, "
        "and one is solved from your rows."
    )
    return _wrong(
        "adapter_misfit",
        f"{CONFIG} modules_to_save",
        f"modules of backbone {backbone!r}",
        f"{module!r}, which is none of them: a head, or another model's",
        hint,
    )


def saved_module(config: AdapterConfig, name: str) -> str | None:
    """Return the module saved whole that contains the tensor of a name, if there is one.

    A name in `modules_to_save` matches the end of a module's name, even in the middle of a word
    (PEFT's `_set_trainable`).
    """
    parts, ends = name.split("."), config.modules_to_save or ()
    modules = (".".join(parts[:n]) for n in range(1, len(parts)))
    return next((m for m in modules if m.endswith(ends)), None)


def _heads(adapter: Adapter, prefix: str, *, backbone: str) -> Iterator[Violation]:
    """Yield a violation for each saved module without the prefix of the backbone's modules."""
    names = (n for n in adapter.saved if not n.startswith(prefix))
    for module in sorted({m for n in names if (m := saved_module(adapter.config, n))}):
        yield head_misfit(module, backbone=backbone)


def _saved(header: Mapping[str, TensorInfo], config: AdapterConfig) -> dict[str, bool]:
    """Return the tensors of modules that are saved whole, and whether PEFT reads them.

    With ``bias: all`` PEFT also writes biases of its own wrapper, but never reads them.
    """
    is_read = dict[str, bool]()
    for name in header:
        inner = name.removeprefix(START)
        module = saved_module(config, inner) if name != inner else None
        if module is not None:
            part = inner.removeprefix(f"{module}.")
            from_wrapper = part.startswith(("original_module.", "modules_to_save."))
            is_read[name] = not (from_wrapper and part.endswith("bias") and config.bias == "all")
    return is_read


def _by_module(
    header: Mapping[str, TensorInfo],
) -> tuple[dict[str, dict[str, str]], list[Violation]]:
    """Return the names of the tensors by module and role, and the violations."""
    tensors, violations = dict[str, dict[str, str]](), list[Violation]()
    for name in sorted(header):
        inner, field = name.removeprefix(START), f"{WEIGHTS} {name}"
        end = next((e for e in _PARTS if inner.endswith(f".{e}")), None)
        if inner == name or end is None:
            expected = f"{START}MODULE.lora_A.weight, lora_B.weight, …"
            violations.append(_wrong("weights_tensors", field, expected, "another tensor", _HINT))
            continue
        roles = tensors.setdefault(inner.removesuffix(f".{end}"), {})
        if _PARTS[end] in roles:
            violations.append(_wrong("weights_tensors", field, "one of its kind", "two", _REBUILD))
        roles[_PARTS[end]] = name
    return tensors, violations


def _layer(
    module: str, info: Mapping[str, TensorInfo], config: AdapterConfig, targets: Targets
) -> AdapterLayer | list[Violation]:
    """Return the adapter's change to a module, or the violations of its tensors."""
    roles = {"A", "B", *("b" * config.lora_bias), *("m" * config.use_dora)}
    if info.keys() - {"bias"} != roles:
        names = {role: end for end, role in reversed(_PARTS.items())}
        expected, given = (
            ", ".join(sorted(names[r] for r in listing))
            for listing in (roles, info.keys() - {"bias"})
        )
        return [_wrong("weights_tensors", f"{WEIGHTS} {module}", expected, given, _REBUILD)]
    if targets.include(module) is False:
        expected = f"only modules that {CONFIG} targets"
        return [_wrong("weights_tensors", f"{WEIGHTS} {module}", expected, "tensors", _REBUILD)]
    rank = targets.rank(module)
    a, b = info["A"].shape, info["B"].shape
    if (len(a), len(b)) != (2, 2) or (a[0], b[1]) != (rank, rank) or 0 in (*a, *b):
        expected = f"lora_A ({rank}, in) and lora_B (out, {rank})"
        return [
            _wrong(
                "weights_tensors",
                f"{WEIGHTS} {module}",
                expected,
                f"{show(a)} and {show(b)}",
                _REBUILD,
            )
        ]
    out = b[0]
    sized = {role: one for role, one in info.items() if role in {"b", "m", "bias"}}
    misfits = [x for x in sized.values() if x.shape != (out,)]
    misfits += [x for x in info.values() if x.dtype == "I64"]
    if misfits:
        return [
            _wrong(
                "weights_tensors",
                f"{WEIGHTS} {module}",
                f"floats, ({out}) beside A and B",
                f"{show(misfits[0].shape)} of {misfits[0].dtype}",
                _REBUILD,
            )
        ]
    return AdapterLayer(shape=(out, a[1]), rank=rank, scale=targets.scale(module, rank))


def _biases(
    config: AdapterConfig, layers: Collection[str], biases: Collection[str]
) -> Iterator[Violation]:
    """Yield a violation for each bias that is not trained according to the configuration."""
    allowed = {"none": (), "lora_only": layers, "all": biases}[config.bias]
    if strange := sorted(name for name in biases if name not in allowed):
        expected = f"only the biases that 'bias': {config.bias!r} trains"
        yield _wrong("weights_tensors", f"{WEIGHTS} bias", expected, listed(strange), _REBUILD)


def _numbers(config: AdapterConfig) -> Iterator[Violation]:
    scales = {"lora_alpha": config.lora_alpha, **(config.alpha_pattern or {})}
    for name, value in scales.items():
        if not abs(value) <= LARGEST:  # NaN too
            expected, scale = f"a number of at most {LARGEST:g}", f"{value:g} for {name}"
            yield _wrong("adapter_config", f"{CONFIG} lora_alpha", expected, scale, _REBUILD)
    if isinstance(config.target_modules, str) and config.layers_to_transform is not None:
        expected = "names in target_modules"
        pattern = f"the pattern {_shown(config.target_modules)}"
        yield _wrong("adapter_config", f"{CONFIG} layers_to_transform", expected, pattern, _REBUILD)


def _patterns(config: AdapterConfig) -> Iterator[Violation]:
    """Yield a violation for each invalid pattern, and for each key that is not a plain name.

    Matching an untrusted pattern may never end.
    """
    for key in ("target_modules", "exclude_modules"):
        value = getattr(config, key)
        if isinstance(value, str) and Pattern(value).broken:
            expected = "names of modules, or a regular expression"
            yield _wrong("adapter_config", f"{CONFIG} {key}", expected, _shown(value), _REBUILD)
    layers = config.layers_pattern or ()
    if odd := [x for x in config.modules_to_save or () if not _MODULE.fullmatch(x)]:
        expected = "names of modules, or ends of names"
        yield _wrong("adapter_config", f"{CONFIG} modules_to_save", expected, _shown(odd[0]), _HINT)
    keys: dict[str, Names] = {
        "rank_pattern": tuple(config.rank_pattern or ()),
        "alpha_pattern": tuple(config.alpha_pattern or ()),
        "layers_pattern": (layers,) if isinstance(layers, str) else layers,
    }
    others = ("target_modules", "exclude_modules", "layers_to_transform", "modules_to_save")
    for name, listing in {**keys, **{n: getattr(config, n) for n in others}}.items():
        most = MAX_FEW if name in {"layers_pattern", "modules_to_save"} else MAX_NAMES
        if isinstance(listing, tuple) and len(listing) > most:
            expected, count = f"at most {most:,}", f"{len(listing):,}"
            yield _wrong("adapter_config", f"{CONFIG} {name}", expected, count, _REBUILD)
    for name, names in keys.items():
        most = MAX_FEW if name == "layers_pattern" else MAX_NAME
        if strange := [x for x in names if len(x) > most or not _PLAIN.fullmatch(x)]:
            expected = "names of modules, or ends of names"
            yield _wrong("adapter_config", f"{CONFIG} {name}", expected, _shown(strange[0]), _HINT)


def _refused_by_peft(config: AdapterConfig) -> Iterator[Violation]:
    """Yield a violation for each value that PEFT would refuse to load, though it is computable."""
    if not config.target_modules:
        yield _wrong("adapter_config", f"{CONFIG} target_modules", "modules", "none", _REBUILD)
    if config.lora_bias and (config.use_dora or not isinstance(config.init_lora_weights, bool)):
        expected = "no DoRA beside it, and init_lora_weights true or false"
        options = f"use_dora {config.use_dora}, {_shown(config.init_lora_weights)}"
        yield _wrong("adapter_config", f"{CONFIG} lora_bias", expected, options, _REBUILD)


def _config(key: str, expected: str, found: str) -> Refused:
    return Refused(_wrong("adapter_config", f"{CONFIG} {key}", expected, found, _HINT))


def _shown(value: object) -> str:
    return reprlib.repr(value)


def _wrong(code: str, field: str, expected: str, found: str, hint: str) -> Violation:
    return Violation(code, field, expected, found, hint)
