"""What identifies a trunk in addition to its tensors: its configuration and its tokenizer.

The configuration is taken as its file states it, not as the installed transformers completes it:
a new version of transformers adds keys, and must not orphan a backbone. A tokenizer is taken as
it works after it was loaded, because which of its files and settings apply depends on its class.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ...registry.package.model_files import CONFIG, check_config
from .gguf_reading import metadata

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BOOKKEEPING = frozenset(
    {
        # Where it was saved, by what, and from which class: the tensors that are read are digested.
        *("_commit_hash", "_name_or_path", "architectures", "transformers_version"),
        # The precision of the file: a trunk is always loaded in float32.
        *("dtype", "torch_dtype"),
        # Of heads, which are not loaded.
        *("finetuning_task", "id2label", "label2id", "problem_type", "task_specific_params"),
        # Of generation, which passes it with each call.
        "use_cache",
    }
)
"""Keys at the top of a ``config.json`` that change nothing in what a trunk computes."""

OF_CALLS = frozenset({"padding", "truncation", "version"})
"""Keys of a serialised tokenizer that its calls set, and the version of its format."""

BOUNDLESS = 10**6
"""A `model_max_length` from which it stands for none; transformers writes 1e30."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What the files of a model state in addition to its tensors.

    Attributes:
        config: The configuration without bookkeeping, as canonical JSON.
        vocabulary: File name → sha256 of the files of a tokenizer that is written in Python.
    """

    config: str
    vocabulary: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return what a model's files state.

        Args:
            model: The model.
            tokenizer: Its tokenizer, while its files are there.
            config: The configuration in its file; by default what the model would save.
        """
        # Only where there is no file: what transformers completes differs from version to version.
        saved = json.loads(model.config.to_json_string()) if config is None else config
        counted = {key: value for key, value in saved.items() if key not in BOOKKEEPING}
        # A fast tokenizer serialises all its rules; one written in Python is known by its files
        # alone.
        files = {}
        if not hasattr(tokenizer, "backend_tokenizer"):
            named = {getattr(tokenizer, key, None) for key in tokenizer.vocab_files_names}
            paths = [Path(name) for name in named if isinstance(name, str)]
            files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
        return cls(config=canonical(counted), vocabulary=files)


def stated_config(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration as the source's file states it, checked.

    Args:
        where: A folder or hub name.
        options: Further options of transformers' ``from_pretrained``.

    Raises:
        ManifestError: If it has a value that cannot compute.
    """
    if "gguf_file" in options:
        return metadata(Path(where, options["gguf_file"]))
    from transformers.utils.hub import cached_file

    data = Path(cached_file(where, CONFIG, **options) or "").read_bytes()
    for violation in check_config(data, {}):
        raise violation.error(f"backbone {where!r}")
    return dict(json.loads(data))


def canonical(value: object) -> str:
    """Return JSON that is the same for equal values: sorted keys, 1e4 for 10000.0 and 10000."""
    return json.dumps(_numbers(value), sort_keys=True, separators=(",", ":"))


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def tokenizer_digest(
    tokenizer: PreTrainedTokenizerBase,
    *,
    vocabulary: Mapping[str, str] | None = None,
    generates: bool = False,
) -> str:
    """Return the sha256 over the rules by which a tokenizer makes ids of texts.

    Args:
        tokenizer: A tokenizer.
        vocabulary: Its files, if it is written in Python (`Stated`).
        generates: Whether its chat template and the way back to texts matter as well.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = {"class": type(tokenizer).__name__, "files": dict(vocabulary or {})}
        rules |= {"vocabulary": tokenizer.get_vocab(), "settings": _settings(tokenizer)}
    else:
        # Encoding never decodes: that part may change without changing a vector.
        unread = OF_CALLS if generates else OF_CALLS | {"decoder"}
        stated = json.loads(backend.to_str())
        rules = {key: _given(part) for key, part in stated.items() if key not in unread}
        if stated.get("normalizer"):  # BertNormalizer's `strip_accents`: null is not false
            rules["normalizer"] = _given(stated["normalizer"], absent=(None,))
    longest = tokenizer.model_max_length
    parts = {
        "rules": rules,
        "special": {k: str(token) for k, token in tokenizer.special_tokens_map.items()},
        # transformers writes 10³⁰ for no limit, and other versions other such numbers.
        "longest": longest if longest is not None and longest < BOUNDLESS else None,
        "cut": tokenizer.truncation_side,
        "split": bool(getattr(tokenizer, "split_special_tokens", False)),
    }
    if generates:
        parts["chat"] = getattr(tokenizer, "chat_template", None)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _given(part: Any, *, absent: Sequence[bool | None] = (None, False)) -> Any:
    """Return a part of a serialised tokenizer without the keys that later versions only add.

    Args:
        part: The part.
        absent: Values that say the same as a key that an older version does not write.
    """
    if not isinstance(part, dict):
        # Lists of objects; the pairs of a vocabulary or of merges have no settings.
        deep = isinstance(part, list) and bool(part) and isinstance(part[0], dict)
        return [_given(x, absent=absent) for x in part] if deep else part
    stated = {k: v for k, v in part.items() if not any(v is x for x in absent)}
    return {k: _given(v, absent=absent) for k, v in stated.items()}


def _settings(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the plain settings of a tokenizer written in Python, other than paths."""
    kinds = (bool, int, float, str)
    places = ("name_or_path", "is_local", "local_files_only")
    skipped = {*tokenizer.vocab_files_names, *places, "chat_template"}
    counted = {k: v for k, v in tokenizer.init_kwargs.items() if isinstance(v, kinds)}
    return {k: v for k, v in counted.items() if k not in skipped and not k.endswith("_file")}
