"""The study of adapters: its texts, its trainings, its scores, and what its page concludes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import red_lab.adapters
import safetensors.torch
import torch
from red_lab.adapters import mixtures, page, run, study, training
from red_lab.adapters.judge import Ledger, score
from red_lab.adapters.study import (
    DOMAINS,
    LANGUAGES,
    DomainTexts,
    Excerpt,
    background,
    read_texts,
)
from red_lab.adapters.training import combined, in_peft, shuffled
from red_lab.generative.tiny import learn_tokenizer
from red_lab.metrics import read_metrics
from red_lab.newsgroups import DATA
from redhost_author.backbone.making import BackbonePlan
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from transformers import LlamaConfig, LlamaForCausalLM

RESULTS = Path(__file__).parents[2] / "docs/results/adapters"


def test_an_adapter_dealt_at_random_has_the_same_numbers_in_other_places() -> None:
    tensors = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.arange(5.0)}
    files = {CONFIG: b"{}", WEIGHTS: safetensors.torch.save(tensors)}
    made = safetensors.torch.load(shuffled(files, 1)[WEIGHTS])
    for name, t in tensors.items():
        assert made[name].shape == t.shape and not torch.equal(made[name], t)
        assert torch.equal(made[name].flatten().sort().values, t.flatten().sort().values)


# -- texts -----------------------------------------------------------------------------------------


def test_domains_have_texts_to_learn_to_show_and_to_judge_and_none_in_two_parts() -> None:
    if not all([*distributions(name=name)] for name in (DATA, "django", "wagtail")):
        pytest.skip("the packages that carry the texts are not installed")
    assert len(DOMAINS) == 20 and set(LANGUAGES) < set(DOMAINS)
    others = set(background(24))
    assert len(others) == 24
    for name in ("german", "cpp", "newswire", "series"):
        texts = read_texts(name)
        parts = [set(texts.passages[part]) for part in ("card", "valid", "test")]
        assert all(len(part) >= 8 for part in parts)
        assert len(set.union(*parts)) == sum(map(len, parts))
        assert others.isdisjoint(set.union(*parts))
        assert not any(p in texts.train for p in texts.passages["test"] if len(p) > 200)


# -- trainings -------------------------------------------------------------------------------------


class Bytes:
    """A tokenizer of bytes."""

    bos_token_id = 0

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [*text.encode("ascii")]}


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 128}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(num_hidden_layers=training.BLOCKS + 1, **sizes, **heads)
    return LlamaForCausalLM(config).requires_grad_(False)


def train(folder: Path, *, rank: int = training.RANK, stop_after: int | None = None) -> bytes:
    model = small_model()

    def progress(done: int, _: int) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    text = "abcdefghij klmnop " * 200
    learnt = training.training_windows(text, Bytes(), steps=5)
    training.train_stranger(folder, learnt, model=model, rank=rank, progress=progress)
    return (folder / WEIGHTS).read_bytes()


def test_a_training_that_was_stopped_goes_on_to_the_same_bytes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(training, "EVERY", 2)
    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", stop_after=3)
    assert not (tmp_path / "stopped").exists()
    assert train(tmp_path / "stopped") == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stopped", "whole"]
    learnt = safetensors.torch.load(whole)
    assert {n.split(".layers.")[1].split(".")[0] for n in learnt} == {
        str(n) for n in range(1, training.BLOCKS + 1)
    }
    assert any(t.any() for n, t in learnt.items() if "lora_B" in n)


def test_a_rank_of_its_own_is_scaled_as_the_others_are(tmp_path) -> None:
    train(tmp_path / "usual")
    learnt = safetensors.torch.load(train(tmp_path / "wide", rank=32))
    assert {t.shape[0] for n, t in learnt.items() if "lora_A" in n} == {32}
    usual, wide = (
        json.loads((tmp_path / name / CONFIG).read_text("utf-8")) for name in ("usual", "wide")
    )
    assert not usual["use_rslora"] and wide["use_rslora"]
    at_eight = wide["lora_alpha"] / training.RANK**0.5  # rsLoRA: α / √R
    assert at_eight == pytest.approx(usual["lora_alpha"] / usual["r"])


def test_a_joint_adapter_learns_the_very_windows_of_all_authors() -> None:
    texts = {"a": "abcdefgh" * 100, "b": "ijklmnop" * 200}
    steps = {"a": 3, "b": 1}
    joint = training.shuffled_windows(texts, steps, Bytes())
    own = [training.training_windows(t, Bytes(), steps=steps[n]) for n, t in texts.items()]
    assert joint.shape == (4 * training.BATCH, training.WINDOW)
    assert sorted(joint.tolist()) == sorted(torch.cat(own).tolist())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT of transformers
def test_a_gate_that_was_stopped_goes_on_to_the_same_bytes_and_weighs_adapters(
    tmp_path, monkeypatch
) -> None:
    train(tmp_path / "a")
    adapters = [tmp_path / "a", tmp_path / "a"]
    monkeypatch.setattr(training, "language_model", lambda: (small_model(), None))
    monkeypatch.setattr(mixtures, "STEPS", 5)
    monkeypatch.setattr(training, "EVERY", 2)
    learnt = training.training_windows("the quick brown fox " * 200, Bytes(), steps=5)

    def stop(_: str) -> Any:
        def progress(done: int, _: int) -> None:
            if done == 3:
                raise KeyboardInterrupt

        return progress

    whole = mixtures.train_xlora(tmp_path / "whole", adapters, learnt).read_bytes()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(mixtures, "shown", stop)
        mixtures.train_xlora(tmp_path / "stopped", adapters, learnt)
    file = mixtures.train_xlora(tmp_path / "stopped", adapters, learnt)
    assert file.read_bytes() == whole
    assert [p.name for p in (tmp_path / "stopped").iterdir()] == [file.name]

    # Two adapters that are the same, at weights that sum to 1, are that adapter.
    ids = learnt[:1, :20]
    mixed = mixtures.xlora(adapters, file)(ids, torch.empty(0))
    alone = in_peft(small_model(), {"a": tmp_path / "a"}).eval()
    state = alone(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    assert torch.allclose(mixed, state, atol=1e-5)
    bare = small_model()(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    assert not torch.allclose(mixed, bare, atol=1e-4)


# -- the whole ------------------------------------------------------------------------------------


def texts_of(name: str) -> DomainTexts:
    """A few texts of one domain, most of whose characters are those of its name."""
    rng = random.Random(name)

    def text(size: int) -> str:
        return " ".join(rng.choice(name + "abc") * 3 for _ in range(size))

    passages = {"card": [text(60) for _ in range(4)], "test": [text(90) for _ in range(2)]}
    return DomainTexts(train=text(900), passages=passages)


@pytest.mark.filterwarnings("ignore")  # of PEFT and transformers
def test_the_study_runs_from_texts_to_its_page(tmp_path, monkeypatch) -> None:
    words = learn_tokenizer(["the quick brown fox"], vocabulary=300, longest=512)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": len(words)}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    start = words.bos_token_id
    config = LlamaConfig(num_hidden_layers=4, bos_token_id=start, **sizes, **heads)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")

    def language_model(*, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
        return LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype), words

    names = ("cpp", "python", "tales")
    for module, values in {
        training: {"LAYERS": 4, "BLOCKS": 2, "language_model": language_model},
        study: {
            "DOMAINS": names,
            "EARLY": 1,
            "STEPS": (2, 1),
            "TESTED": 2,
            "read_texts": texts_of,
            "background": lambda count: texts_of("z").passages["card"],
            "BackbonePlan": lambda *, source, **plan: BackbonePlan(
                source=f"hf:{tmp_path / 'model'}", **plan
            ),
            "smollm2_file": lambda: None,
        },
        mixtures: {"STEPS": 2},
        red_lab.adapters: {"BATCHES": {2: 1}},
    }.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    out = tmp_path / "out"
    run(out=out, work=tmp_path / "work", runs=1)
    metrics = read_metrics(out)
    assert (out / "README.md").read_text("utf-8") == page(metrics)
    assert metrics["systems"].keys() == read_metrics(RESULTS)["systems"].keys()
    assert metrics["systems"]["oracle"]["share"] == 1.0
    assert all(0 < x["mean"] < 20 for x in metrics["systems"].values())


# -- counts and scores -----------------------------------------------------------------------------

EXCERPTS = [Excerpt(domain=d, ids=(n,), size=10) for n, d in enumerate("aabb")]


class Counting:
    """Counts how often a model was read with; bits are ten for each sign of its name, and more."""

    def __init__(self) -> None:
        self.requested: list[tuple[int, str]] = []

    def bits(self, excerpt: Excerpt, read: Any) -> float:
        self.requested.append((excerpt.ids[0], read))
        return 10.0 * len(read) + excerpt.ids[0]


def ledger(folder: Path, judge: Counting, names: Sequence[str] = ("x", "yy")) -> Ledger:
    models = {name: lambda name=name: name for name in names}
    return Ledger(folder, judge=judge, excerpts=EXCERPTS, models=models)  # type: ignore[arg-type]


def test_what_was_counted_is_not_counted_again(tmp_path) -> None:
    first, second = Counting(), Counting()
    wanted = ["x", "yy", "x", "x"]
    assert ledger(tmp_path, first).bits(wanted) == [10.0, 21.0, 12.0, 13.0]
    assert ledger(tmp_path, second).bits(["x", "x", "x", "x"]) == [10.0, 11.0, 12.0, 13.0]
    assert len(first.requested) == 4 and second.requested == [(1, "x")]


def test_the_share_is_of_what_the_best_gains_over_the_base() -> None:
    base, best = np.full(4, 20.0), np.array([10.0, 10.0, 16.0, 16.0])
    half = score((base + best) / 2, EXCERPTS, base=base, best=best)
    assert half["share"] == pytest.approx(0.5) and half["bits"] == {"a": 1.5, "b": 1.8}
    assert half["low"] <= half["share"] <= half["high"]
    assert half["mean"] == pytest.approx(1.65) and half["of_oracle"] == pytest.approx(1.3 / 1.65)
    assert score(best, EXCERPTS, base=base, best=best)["share"] == 1.0


# -- the page --------------------------------------------------------------------------------------


def test_the_figures_hold_what_pages_say_in_words() -> None:
    metrics = read_metrics(RESULTS)
    assert len(metrics["setting"]["domains"]) >= 20
    # What docs/results/README.md, docs/authoring.md and the README say in words.
    share = {name: system["share"] for name, system in metrics["systems"].items()}
    others = ["PEFT's Arrow", "X-LoRA", "uniform merge", "TIES merge", "DARE merge", "at random"]
    assert max(share[name] for name in others) < 0.75 and share["ridge:k=1"] > 0.95
    assert share["joint adapter"] > 1.3
    near = {"galician → portuguese", "galician → spanish"}
    assert set(metrics["mistakes"]["ridge:k=1"]) == near


def test_sentences_follow_the_figures() -> None:
    metrics = read_metrics(RESULTS)
    systems = metrics["systems"]
    systems["ridge:k=1"]["share"] = 0.991
    for name in systems:
        if name not in {"oracle", "ridge:k=1"}:
            systems[name]["share"] = 0.5
    text = page(metrics)
    assert "the target was 99%: met" in text and "No other system in the table keeps more" in text
    systems["ridge:k=1"]["share"], systems["PEFT's Arrow"]["share"] = 0.9, 0.95
    metrics["mistakes"]["ridge:k=1"] = {"tales → greek": 2}
    systems["joint adapter"]["mean"] = systems["oracle"]["mean"]
    text = page(metrics)
    assert "the target was 99%: missed" in text and "Systems that keep more: PEFT's Arrow." in text
    assert "tales → greek (2)" in text and "one adapter trained on them" not in text
    passes = metrics["cost"]["passes"]["1"]["over_backbone"]["top half"]
    for ratio, reached in ((1.6, "met"), (1.61, "missed")):
        passes["ratio"] = ratio
        row = f"| one adapter, top half, batch 1: at most 1.6 × | {ratio:.2f} × | {reached} |"
        assert row in page(metrics)


MERGED = {
    "updates averaged": ("cat", 0.2),
    "parameters averaged": ("linear", 0.04),  # (mean of B) (mean of A): weights count twice
    "updates summed": ("cat", 1.0),
}
"""Name → PEFT's combination type, and the weight of each of five adapters."""


@pytest.mark.parametrize("name", MERGED)
def test_merges_of_adapters_are_what_their_names_say(name, tmp_path) -> None:
    """Against PEFT's own numbers: update is α/r · B A, of every layer."""
    peft = pytest.importorskip("peft")

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))

    factors, folders = [], {}
    for seed, adapter in enumerate(("one", "two", "three", "four", "five")):
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0", "1"])
        made, generator = (
            peft.get_peft_model(model(), config),
            torch.Generator().manual_seed(seed),
        )
        with torch.no_grad():
            for key, p in made.named_parameters():
                if "lora_" in key:
                    p.copy_(torch.randn(p.shape, generator=generator))
        folders[adapter] = tmp_path / adapter
        made.save_pretrained(folders[adapter])
        factors.append(safetensors.torch.load_file(folders[adapter] / "adapter_model.safetensors"))
    how, weight = MERGED[name]
    whole = in_peft(model(), folders)
    files = combined(whole, list(folders), how, weight=weight, options={})
    config = json.loads(files["adapter_config.json"])
    merged = safetensors.torch.load(files["adapter_model.safetensors"])
    for layer in ("0", "1"):
        a, b = (f"base_model.model.{layer}.lora_{x}.weight" for x in "AB")
        found = config["lora_alpha"] / config["r"] * merged[b] @ merged[a]
        updates = torch.stack([2 * f[b] @ f[a] for f in factors])
        mean_b, mean_a = (torch.stack([f[x] for f in factors]).mean(0) for x in (b, a))
        expected = {
            "updates averaged": updates.mean(0),
            "updates summed": updates.sum(0),
            "parameters averaged": 2 * mean_b @ mean_a,
        }
        torch.testing.assert_close(found, expected[name])
