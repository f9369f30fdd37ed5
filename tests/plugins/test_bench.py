"""The bench's section `peers`: pages from files, small real runs, what is counted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from red_lab.bench import page, write_page
from red_lab.bench.peers import adapters_python, open_trunk, texts, write_model
from red_lab.bench.peers_model import compare, load, rank_for, token_ids
from red_lab.bench.processes import ask
from red_lab.bench.rounds import in_pairs, in_turns, overhead, share, spread
from warm_start import warm_command

import redhost

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "bench"


@pytest.fixture(scope="module")
def trunk() -> redhost.plugins.TextEncoder:
    return open_trunk("tiny")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model("tiny", tmp_path_factory.mktemp("model"))


# -- pages -----------------------------------------------------------------------------------------


def test_the_page_is_written_from_the_sections_files(tmp_path) -> None:
    for file in RESULTS.glob("*.json"):
        shutil.copy(file, tmp_path)
    write_page(tmp_path)
    assert (tmp_path / "README.md").read_text("utf-8") == (RESULTS / "README.md").read_text("utf-8")


def test_a_target_that_is_missed_is_called_missed() -> None:
    """Ten times redhost's overhead at three batches."""
    metrics = json.loads((RESULTS / "peers.json").read_text("utf-8"))
    systems = metrics["forward"]["smollm2"]["systems"]
    for times, missed in ((9.99, 3), (10.01, 0)):
        for batch, cell in systems["peft five"].items():
            ours = systems["redhost bus"][batch]["overhead"]["ratio"]
            cell["overhead"]["ratio"] = times * ours
        assert page("peers", metrics).count("**missed**") == missed


def test_texts_have_one_length_in_tokens(trunk) -> None:
    assert len(set(texts(64))) == 64
    assert len({len(trunk.tokens(text)) for text in texts(64)}) == 1


# -- timing ----------------------------------------------------------------------------------------


def test_systems_take_turns_and_the_first_round_is_not_counted() -> None:
    calls: list[str] = []
    systems = {name: lambda name=name: calls.append(name) for name in "abc"}
    seconds = in_turns(systems, rounds=2)
    assert "".join(calls) == "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_the_floor_runs_just_before_every_system() -> None:
    calls: list[str] = []
    systems = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = in_pairs(lambda: calls.append("."), systems, rounds=2)
    assert "".join(calls) == 3 * ".a.b"
    assert [(len(x), len(y)) for x, y in seconds.values()] == [(2, 2), (2, 2)]


def test_ratios_are_of_medians_and_bounds_of_rounds() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.5, "high": 2.5}
    assert spread([4.0]) == {"median": 4.0, "low": 4.0, "high": 4.0}
    shared = share([1.0, 2.0, 6.0], [10.0, 10.0, 20.0])
    assert shared["ratio"] == 0.2 and shared["low"] == pytest.approx(0.15)
    assert overhead([1.1, 1.1], [1.0, 1.0])["ratio"] == pytest.approx(0.1)
    slowed = overhead([1.1, 5.5, 1.1], [1.0, 5.0, 1.0])  # both of a pair, and the pair alone
    assert slowed["high"] == pytest.approx(0.1)


# -- the section peers -----------------------------------------------------------------------------


def test_the_floor_answers_as_the_backbone_does(folder, trunk) -> None:
    model, ids = load(folder), token_ids(folder)
    h = trunk.encode(texts(len(ids)))
    with torch.inference_mode():
        logits = model(input_ids=ids).logits
    assert torch.allclose(logits, h @ model.classifier.T, atol=1e-4)
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_adapters_have_an_experts_number_of_parameters(folder) -> None:
    """Four blocks, q and v of 128 × 128: 2,048 parameters for every unit of rank."""
    assert rank_for(load(folder)) * 2048 == 2 * 128 * 32


def test_a_part_timed_apart_is_a_share_of_the_floor() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)

    def floor(ids: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(torch.randn(200, 200))

    def twice(ids: torch.Tensor) -> torch.Tensor:
        return floor(floor(ids))

    systems = compare(
        floor, {"twice": twice}, ids, rounds=5, apart={"part": lambda ids: ids}, batches=(1, 2)
    )["systems"]
    assert (
        "overhead" not in systems["floor"]["1"] and systems["floor"]["1"]["seconds"]["median"] > 0
    )
    assert (
        -1 < systems["twice"]["1"]["overhead"]["low"] <= systems["twice"]["1"]["overhead"]["high"]
    )
    assert 0 < systems["part"]["2"]["overhead"]["ratio"] < 1


def test_the_bench_says_what_is_missing_in_one_line(tmp_path) -> None:
    with pytest.raises(redhost.MissingError, match=r"make \.venv/peers"):
        adapters_python(tmp_path)
    done = subprocess.run(
        warm_command("-m", "redhost", "lab", "bench", "peers", "--out", str(tmp_path)),
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 3, done.stderr
    assert "the peers are not installed" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("*.json"))


def test_a_side_measures_in_a_process_of_its_own_and_tells_its_peak(folder) -> None:
    result = ask("peers_here:memory", folder=str(folder), system="floor")
    assert set(result) == {"peak_bytes"} and result["peak_bytes"] > 50 * 2**20
    with pytest.raises(redhost.MissingError, match=r"rounds:spread.*TypeError: spread\(\) got"):
        ask("rounds:spread", system="nobody")


def test_the_environment_of_adapterhub_needs_no_redhost() -> None:
    absent = "import sys; sys.modules['redhost'] = sys.modules['click'] = None"
    script = f"{absent}; import red_lab.bench.processes, red_lab.bench.peers_hub"
    subprocess.run([sys.executable, "-c", script], check=True)


# -- what needs PEFT -------------------------------------------------------------------------------


@pytest.fixture
def lora():
    pytest.importorskip("peft", reason="PEFT is not installed: make .venv/peers")
    from red_lab.bench import peers_here as module

    return module


pytestmark = pytest.mark.filterwarnings("default")
"""Of other people's libraries; ours raise none."""


def test_five_active_adapters_add_up_and_one_merged_is_that_one(folder, lora) -> None:
    ids = token_ids(folder)[:4]
    with torch.inference_mode():
        plain = load(folder)(input_ids=ids).logits
        answers = {n: getattr(lora, n)(folder)(ids) for n in ("one", "five", "mixed", "merged")}
        model = lora.random_loras(folder)
        model.set_adapter("3")
        fourth = model(input_ids=ids).logits
    assert torch.allclose(answers["merged"], answers["one"], atol=1e-3)
    assert torch.allclose(answers["mixed"][:1], answers["one"][:1], atol=1e-4)
    assert torch.allclose(answers["mixed"][3:], fourth[3:], atol=1e-4)
    different = [plain, answers["one"], answers["five"]]
    assert all(
        not torch.allclose(a, b, atol=1e-2) for a in different for b in different if a is not b
    )


def test_only_the_router_of_x_lora_learns(folder, lora, tmp_path) -> None:
    lora.random_loras(folder, 2).save_pretrained(tmp_path, save_embedding_layers=False)
    model = lora.make_xlora(load(folder), [tmp_path / "0", tmp_path / "1"])
    learns = [n for n, p in model.named_parameters() if p.requires_grad]
    assert learns and all("internal_xlora_classifier" in n for n in learns)
    assert model(input_ids=token_ids(folder)[:3]).logits.shape == (3, 99)
