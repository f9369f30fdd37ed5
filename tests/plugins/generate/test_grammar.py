"""Text that is JSON of a schema: every text that ends is valid, whatever the sampling."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import redhost_generate
import torch
from redhost_generate import JsonGrammar, Sampling

from redhost import MissingError
from redhost.core.model.composed import ComposedModel
from redhost.registry.errors import UsageError

PROMPT = "3 + 4 = "
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "n": {"type": "integer", "minimum": -3, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", None]}, "maxItems": 3},
    },
    "required": ["name", "n", "tags"],
    "additionalProperties": False,
}


def written(
    model: ComposedModel, schema: dict[str, Any] | bool = SCHEMA, **options: Any
) -> tuple[str, JsonGrammar]:
    """Return a text and its grammar, which says whether it is complete."""
    grammar = JsonGrammar(model, schema)
    options = {"max_tokens": 150, **options}
    tokens = redhost_generate.generate(model, PROMPT, grammar=grammar, **options)
    return "".join(t.text for t in tokens), grammar


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {},
        {"temperature": 3.0},
        {"sampling": Sampling(top_p=0.3)},
        {"sampling": Sampling(top_k=1)},
        {"sampling": Sampling(min_p=0.9)},
        {"sampling": Sampling(repetition_penalty=1.5, frequency_penalty=2, presence_penalty=-2)},
        {"expert": "sums"},
        {"expert": "backbone"},
    ],
)
def test_a_text_that_ends_is_valid_whatever_the_sampling(composed, options, seed) -> None:
    text, grammar = written(composed, seed=seed, **options)
    assert grammar.finished
    jsonschema.validate(json.loads(text), SCHEMA)
