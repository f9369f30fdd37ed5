"""The shape of a transformers pipeline: beside the real ones, on the same inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redhost_generate
import transformers
from redhost_generate import TextGeneration

import redhost
from redhost.pipelines import TextClassification, pipeline
from redhost.testing import Environment, tiny_backbone


def shape(value: Any) -> Any:
    """Return what a value is made of, without what it says."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in sorted(value.items())}
    return [shape(v) for v in value] if isinstance(value, list) else type(value)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Any:
    folder = tiny_backbone(tmp_path_factory.mktemp("model"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=3)
    config.pad_token_id = tokenizer.pad_token_id = 0
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    return transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)


@pytest.mark.parametrize("inputs", ["What is 3 plus 4?", ["What is 3 plus 4?", "hello"]])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_k": None}])
def test_labels_have_the_shape_of_the_real_ones(home, theirs, inputs, options) -> None:
    ours = pipeline("text-classification", home=home)
    assert isinstance(ours, TextClassification)
    found, real = ours(inputs, **options), theirs(inputs, **options)
    if options.get("top_k", 1) is None:  # ours has more labels
        found, real = (x[0] if isinstance(x[0], list) else x for x in (found, real))
        assert len(found) == len(ours.host.composed.bus.labels)
        found, real = found[:1], real[:1]
    assert shape(found) == shape(real)


def test_labels_and_scores_are_the_hosts(home) -> None:
    host, texts = redhost.Host.open(home), ["What is 37 plus 12?", "good morning to you"]
    ours = TextClassification(host)
    answers = host.predict(texts)
    assert ours(texts) == [{"label": a.label, "score": a.probability} for a in answers]
    first, second, *_ = ours(texts[0], top_k=5)
    assert first["label"] == "49" and first["score"] > second["score"] > 0


@pytest.fixture(scope="module")
def generating(speaker_folder, adapter_packages, tmp_path_factory) -> Path:
    folder, home = tmp_path_factory.mktemp("speaking"), tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        environment = Environment(folder)
        for package in (speaker_folder, *adapter_packages.values()):
            environment.install(package.parents[1])
        redhost.Host.open(home, backbone="speaker").recompose(accept=True)
    return home


@pytest.mark.parametrize("inputs", ["3 + 4 = ", ["3 + 4 = ", "the cat sat "]])
@pytest.mark.parametrize("full", [True, False])
def test_texts_have_the_shape_of_the_real_ones(generating, speaker_model, inputs, full) -> None:
    ours = pipeline(home=generating)
    assert isinstance(ours, TextGeneration)
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "return_full_text": full}
    theirs = transformers.pipeline("text-generation", model=str(speaker_model))
    found = ours(inputs, **options)
    assert shape(found) == shape(theirs(inputs, **options))
    [one] = found if isinstance(inputs, str) else found[0]
    host = redhost.Host.open(generating)
    text = "".join(
        t.text
        for t in redhost_generate.generate(host.composed, "3 + 4 = ", max_tokens=5, temperature=0)
    )
    assert one["generated_text"] == ("3 + 4 = " if full else "") + text


def test_several_prompts_are_continued_together(generating) -> None:
    ours, prompts = pipeline(home=generating), ["3 + 4 = ", "the cat sat ", "def f3(x):"]
    alone = [ours(prompt, max_new_tokens=9, seed=2) for prompt in prompts]
    assert ours(prompts, max_new_tokens=9, seed=2, batch_size=2) == alone
    with pytest.raises(redhost.UsageError):
        ours(prompts, batch_size=0)


def test_texts_of_a_schema_are_json_of_it(generating) -> None:
    pytest.importorskip("llguidance")
    ours, schema = pipeline(home=generating), {"type": "array", "items": {"type": "integer"}}
    schema["maxItems"] = 3
    options = {"max_new_tokens": 60, "seed": 3, "return_full_text": False, "json_schema": schema}
    for made in ours(["3 + 4 = ", "the cat sat "], batch_size=2, **options):
        assert isinstance(json.loads(made[0]["generated_text"]), list)
        assert made[0]["finish_reason"] == "stop"
    [cut] = ours("3 + 4 = ", **options | {"max_new_tokens": 1})
    assert (cut["generated_text"], cut["finish_reason"]) == ("[", "length")
    with pytest.raises(redhost.UsageError, match="Invalid type"):
        ours("3 + 4 = ", json_schema={"type": "nothing"})


def test_another_task_than_the_backbones_is_refused(home, generating) -> None:
    with pytest.raises(redhost.UsageError):
        pipeline("text-generation", home=home)
    with pytest.raises(redhost.UsageError):
        pipeline("text-classification", home=generating)
    with pytest.raises(redhost.UsageError, match="top_k"):
        pipeline(home=home)("What is 8 plus 9?", top_k=0)
