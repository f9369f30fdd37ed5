"""Read the settings of a sentence-transformers folder: pooling, dense layers, longest input, case.

``modules.json`` lists the modules that produce a vector. Pooling and dense layers are read here.
Normalisation to length 1 at the end makes no difference to experts: apart from its ε, the bus norm
of h and of h / ‖h‖ is the same. Any other module that changes vectors is refused by name, because
experts would then read different vectors than users of the folder.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from redhost.core.backbones.pooling import Dense, Pooling
from redhost.registry.errors import UsageError
from redhost.registry.package.manifest import Activation, PoolingMode

MODES: Mapping[str, PoolingMode] = {
    "cls": "first",
    "lasttoken": "last",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len": "mean-sqrt",
    "weightedmean": "weighted-mean",
}
"""Pooling modes of sentence-transformers → the equivalent here."""

ACTIVATIONS: Mapping[str | None, Activation] = {
    None: "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
}
"""Activations of dense layers, by the settings of such a layer → the equivalent here."""

DENSE: Mapping[str, Container[object]] = {
    "activation_function": ACTIVATIONS,
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
    "use_residual": (None, False),
}
"""The settings of a dense layer that are followed."""

MODULES = re.compile(r"Transformer Pooling( Dense| Dropout)*( Normalize)*")
"""The modules that are followed, in this order."""

HINT = "Give --pooling, if you want the model without that."


@dataclass(frozen=True)
class SentenceFolder:
    """The settings of a sentence-transformers folder; any other folder has none.

    Attributes:
        where: The folder, or a hub name.
        revision: The commit, for a hub name.
    """

    where: str
    revision: str | None = None

    @property
    def longest_input(self) -> int | None:
        """The longest input of the model in tokens, if it is specified."""
        length = self._json("sentence_bert_config.json").get("max_seq_length")
        return length if isinstance(length, int) and length > 0 else None

    @property
    def is_lowered(self) -> bool:
        """Whether texts are put into lower case before all else."""
        return bool(self._json("sentence_bert_config.json").get("do_lower_case"))

    @property
    def pooling(self) -> Pooling | None:
        """The pooling with its dense layers; None if this is no folder of sentence-transformers.

        Raises:
            UsageError: If vectors are computed in a way that is not supported here.
        """
        modules = self._json("modules.json")
        if not modules:
            return None
        types = [str(module.get("type", "")) for module in modules]
        kinds = [
            name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name
            for name in types
        ]
        if not MODULES.fullmatch(" ".join(kinds)):
            expected = "an encoder, pooling, dense layers and normalising, in this order"
            raise self.refused(expected, ", ".join(kinds))
        config = self._json("config_sentence_transformers.json")
        prompt = (config.get("prompts") or {}).get(config.get("default_prompt_name") or "")
        if prompt:
            raise self.refused("no prompt before every text", repr(prompt))
        paths = [str(module.get("path", "")) for module in modules]
        dense = [self._dense(p) for kind, p in zip(kinds, paths, strict=True) if kind == "Dense"]
        return Pooling(mode=self._mode(paths[1]), dense=tuple(dense))

    def _mode(self, path: str) -> PoolingMode:
        """Return the single pooling mode, from either format of the settings."""
        config, prefix = self._json(f"{path}/config.json"), "pooling_mode_"
        flags = [k.removeprefix(prefix) for k, on in config.items() if k.startswith(prefix) and on]
        given = config.get("pooling_mode", flags)
        modes = [given] if isinstance(given, str) else sorted(map(str, given))
        modes = [mode.removesuffix("_tokens").removesuffix("_token") for mode in modes]
        if len(modes) != 1 or modes[0] not in MODES:
            raise self.refused("pooling " + ", ".join(MODES), ", ".join(modes) or "none")
        return MODES[modes[0]]

    def _dense(self, path: str) -> Dense:
        """Return a dense layer."""
        config = self._json(f"{path}/config.json")
        if other := [f"{k} {config[k]}" for k in DENSE if config.get(k) not in DENSE[k]]:
            expected = "dense layers of the pooled vector, with an activation of torch"
            raise self.refused(expected, ", ".join(other))
        try:
            tensors = safetensors.torch.load(self._bytes(f"{path}/model.safetensors"))
            weight = tensors["linear.weight"].float()
        except (KeyError, OSError, safetensors.SafetensorError) as e:
            raise self.refused(f"{path}/model.safetensors with linear.weight", str(e)) from e
        bias = tensors.get("linear.bias", weight.new_zeros(len(weight))).float()
        activation = ACTIVATIONS[config.get("activation_function")]
        return Dense(tensors={"weight": weight, "bias": bias}, activation=activation)

    def _json(self, name: str) -> Any:
        """Return the content of a JSON file; nothing if it is missing or not valid JSON."""
        try:
            return json.loads(self._bytes(name))
        except (OSError, ValueError):
            return {}

    def _bytes(self, name: str) -> bytes:
        path = Path(self.where, name)
        if self.revision is not None and not Path(self.where).is_dir():
            from transformers.utils.hub import cached_file

            path = Path(cached_file(self.where, name, revision=self.revision) or "")
        return path.read_bytes()

    def refused(self, expected: str, found: str) -> UsageError:
        """Return the error of a setting that is not followed."""
        subject = f"the sentence encoder in {self.where}"
        return UsageError(subject, expected=expected, found=found, hint=HINT)


def lower_first(tokenizer: Any, *, carried: bool) -> dict[str, bytes]:
    """Put texts into lower case before all else, as sentence-transformers does.

    Args:
        tokenizer: The tokenizer.
        carried: Whether the package carries its files.

    Returns:
        The tokenizer's files.

    Raises:
        UsageError: If the package does not carry them, or they are not of the tokenizers library.
    """
    from tokenizers.normalizers import Lowercase, Sequence

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not carried:
        expected = "a folder with a tokenizer.json, which the package then carries"
        raise UsageError("texts in lower case (do_lower_case)", expected=expected)
    backend.normalizer = Sequence([Lowercase(), *filter(None, [backend.normalizer])])
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        tokenizer.save_pretrained(folder)
        rules, stated = Path(folder, "tokenizer.json"), Path(folder, "tokenizer_config.json")
        # A model's own class would rebuild its normalizer from the settings.
        settings = json.loads(stated.read_bytes()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        return {rules.name: rules.read_bytes(), stated.name: json.dumps(settings).encode()}
