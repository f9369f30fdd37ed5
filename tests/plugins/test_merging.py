"""`redhost lab merging`: every section has its rows, and merges are what their names say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from red_lab.adapters.merges import combined, in_peft
from red_lab.merging.adapters import MERGES
from red_lab.merging.bound import excess, texts_needed
from red_lab.merging.folded import SHARPNESS, STEPS, average
from red_lab.merging.judge import moved
from red_lab.merging.page import ADAPTERS, EXPERTS
from red_lab.merging.run import SECTIONS

from redhost.core.bus.experts import LowRank

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "merging"
METRICS = json.loads((RESULTS / "metrics.json").read_text("utf-8"))


def test_every_section_has_every_row() -> None:
    assert METRICS.keys() == {"schema", *SECTIONS}
    for name in ("ranges", "newswire"):
        assert METRICS[name]["accuracy"].keys() == EXPERTS.keys()
        flat = METRICS[name]["flat"]
        assert flat.keys() == {f"{rho:g}" for rho in SHARPNESS}
        assert all(steps.keys() == {"0", *map("{:g}".format, STEPS)} for steps in flat.values())
    assert METRICS["adapters"]["accuracy"].keys() == ADAPTERS.keys()


def low_rank(seed: int, **changes: object) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    given = {
        "U": torch.randn(3, 4, generator=generator),
        "V": torch.randn(2, 3, generator=generator),
        "v": torch.randn(2, generator=generator),
        "activation": "gelu",
        "space": "hidden",
    }
    return LowRank(**{**given, **changes})


def test_an_average_is_the_mean_of_all_tensors() -> None:
    first, second = low_rank(0), low_rank(1)
    made = average([first, second])
    for name in ("U", "V", "v"):
        expected = (getattr(first, name) + getattr(second, name)) / 2
        torch.testing.assert_close(getattr(made, name), expected)
    same = average([first, first])
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(same(z), first(z))


def test_labels_keep_their_own_rows_in_an_average() -> None:
    parts = [
        low_rank(0, space="labels", labels=("a", "b")),
        low_rank(1, space="labels", labels=("c", "d")),
    ]
    made = average(parts)
    assert made.labels == ("a", "b", "c", "d")
    torch.testing.assert_close(made.V, torch.cat([p.V for p in parts]))
    torch.testing.assert_close(made.U, (parts[0].U + parts[1].U) / 2)


def test_a_random_step_has_the_length_that_is_wanted() -> None:
    expert = low_rank(0)
    before = {name: p.clone() for name, p in expert.state_dict().items()}
    for name, p in moved(expert, length=0.25, seed=3).state_dict().items():
        assert float((p - before[name]).norm() / before[name].norm()) == pytest.approx(0.25)
        assert torch.equal(expert.state_dict()[name], before[name])


@pytest.mark.parametrize("name", ["updates averaged", "updates summed", "parameters averaged"])
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
    how, weight, options = MERGES[name]
    whole = in_peft(model(), folders)
    files = combined(whole, list(folders), how, weight=weight, options=options)
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


def test_the_pages_say_what_was_found() -> None:
    """A fold loses next to nothing; averages are the backbone on sums and ruin newswire."""
    ranges, adapters = METRICS["ranges"], METRICS["adapters"]
    assert ranges["less routed"]["fold 0"]["high"] > 0 > ranges["less routed"]["averaged"]["high"]
    assert ranges["accuracy"]["averaged"]["mean"] == ranges["accuracy"]["nothing"]["mean"]
    for name in ("updates averaged", "parameters averaged"):
        assert adapters["accuracy"][name]["mean"] == ranges["accuracy"]["nothing"]["mean"]
    newswire = METRICS["newswire"]
    assert newswire["less routed"]["fold 0"]["high"] > 0
    assert newswire["less routed"]["averaged"]["high"] < -0.4
    for section in (ranges, newswire):
        folds = [section["accuracy"][f"fold {rho:g}"]["mean"] for rho in (0, 0.05, 0.2)]
        assert max(folds) - min(folds) < 0.01
    assert ranges["accuracy"]["routed"]["low"] > adapters["accuracy"]["routed"]["high"]


def test_a_bound_by_flatness_says_nothing_until_the_texts_outnumber_the_weights() -> None:
    needed = texts_needed(numbers=8192, step=0.4)
    assert excess(numbers=8192, step=0.4, texts=needed) < 1
    assert excess(numbers=8192, step=0.4, texts=needed - 1) >= 1
    # KL = d / 2s² = 25,600 nats: n has to be more than half of it.
    assert 12_800 < needed < 12_820
    assert texts_needed(numbers=8192, step=0.8) < needed < texts_needed(numbers=9000, step=0.4)
