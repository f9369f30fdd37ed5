"""From an adapter that PEFT saved to an expert that answers, and back to the same bytes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redhost_author.project import package_in
from redhost_author.testing import backbone_project
from redhost_peft.peft_adapter import CONFIG, START, WEIGHTS
from safetensors.torch import load_file, save_file

import redhost

Save = Callable[..., Path]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of a backbone that answers nothing itself."""
    return backbone_project(tmp_path_factory.mktemp("plain") / "red-backbone-tiny-random")


@pytest.fixture(scope="module")
def save_adapter(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Return the function that saves an adapter of that backbone with PEFT, into a new folder."""

    def save(**options: Any) -> Path:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel

        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = AutoModel.from_pretrained(package_in(plain), dtype=torch.float32)
            made = get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj"], **options}))
            with torch.no_grad():
                for name, p in made.named_parameters():
                    if "lora_" in name or ".modules_to_save." in name:
                        p.add_(0.3 * torch.randn_like(p))
            folder = tmp_path_factory.mktemp("adapter")
            made.save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def rows(tmp_path: Path) -> str:
    data = ({"text": f"number {n}", "label": ("even", "odd")[n % 2]} for n in range(80))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    return str(path)


def test_an_adapter_becomes_an_expert_and_comes_out_as_it_went_in(
    environment, plain, save_adapter, rows, call, tmp_path, monkeypatch
) -> None:
    environment.install(plain)
    adapter = save_adapter(r=4, modules_to_save=["layers.2.mlp.up_proj", "norm"])
    options = ("--backbone", "tiny-random", "--home", str(tmp_path / "home"))
    made = call("new-expert", "parity", "--from", f"peft:{adapter}", "--data", rows, *options)
    assert made[0] == 0, made
    assert "expert 'parity': 2 labels" in made[1] and "next: redhost pack" in made[1]
    folder = package_in(Path("red-expert-parity"))
    manifest = json.loads((folder / "expert.json").read_text())
    assert (manifest["form"], manifest["rank"], manifest["schema"]) == (
        "lora",
        4,
        "redhost.expert/1",
    )
    shapes = {n.removeprefix(START): tuple(x) for n, x in manifest["tensors"].items()}
    lora = {n.partition(".lora_")[0]: x for n, x in shapes.items() if n.endswith("lora_A.weight")}
    assert lora == {f"layers.{n}.self_attn.q_proj": (4, 16) for n in range(3)}
    saved = {n for n in shapes if ".lora_" not in n}
    assert saved >= {"norm.weight", "layers.0.input_layernorm.weight"}
    assert "layers.2.mlp.up_proj.weight" in saved and len(saved) == 14
    assert manifest["files"].keys() == {CONFIG, "head.safetensors"}
    for name in (CONFIG, WEIGHTS):
        assert (folder / name).read_bytes() == (adapter / name).read_bytes()
    assert call("pack", "red-expert-parity", *options)[0] == 0
    [wheel] = Path("red-expert-parity/dist").iterdir()
    checked = call("check", str(wheel), *options[:2])
    assert checked[0] == 0, checked
    environment.install(Path("red-expert-parity"))
    listed = json.loads(call("list-experts", "--json", *options)[1])
    assert {x["id"]: (x["state"], x["form"]) for x in listed}["parity"] == ("enabled", "lora")
    with redhost.Host.open(tmp_path / "home", backbone="tiny-random") as host:
        assert set(host.recompose().experts) == {"parity"}
        answers = host.predict(["number 4", "number 5"])
        [segment] = host.composed.bus.layout.segments
        assert segment.normalised and segment.key.startswith("adapter ")
    assert {a.label for a in answers} <= {"even", "odd"}
    with redhost.Host.open(tmp_path / "home", backbone="tiny-random") as host:
        assert host.predict(["number 4", "number 5"]) == answers
    for source in ("parity", str(wheel)):
        assert call("export", source, "--to", "peft", *options)[0] == 0
        for name in (CONFIG, WEIGHTS):
            back = Path("parity-peft", name)
            assert back.read_bytes() == (adapter / name).read_bytes()
            back.unlink()
        Path("parity-peft").rmdir()
    assert call("export", "parity", "--to", "gguf", *options)[0] == 2  # it saves whole modules
    assert not Path("parity-gguf").exists()


def test_one_that_is_trained_here_goes_the_whole_way(
    environment, plain, rows, call, tmp_path
) -> None:
    environment.install(plain)
    options = ("--backbone", "tiny-random", "--home", str(tmp_path / "home"))
    made = call(
        *("new-expert", "parity", "--form", "lora", "--rank", "2", "--blocks", "1"),
        *("--targets", "q_proj,down_proj", "--backbone", "tiny-random"),
    )
    assert made[0] == 0 and "next: redhost train-expert" in made[1], made
    trained = call("train-expert", "red-expert-parity", "--data", rows, "--epochs", "2", *options)
    assert trained[0] == 0 and "expert 'parity': 2 labels" in trained[1], trained
    manifest = json.loads((package_in(Path("red-expert-parity")) / "expert.json").read_text())
    assert (manifest["form"], manifest["rank"], manifest["training"]["seed"]) == ("lora", 2, 0)
    ends = {"self_attn.q_proj", "mlp.down_proj"}
    names = {n.removeprefix(START).partition(".lora_")[0] for n in manifest["tensors"]}
    assert names == {f"layers.2.{end}" for end in ends}
    environment.install(Path("red-expert-parity"))
    assert call("export", "parity", "--to", "gguf", *options)[0] == 0
    assert Path("parity-gguf", "parity.gguf").read_bytes()[:4] == b"GGUF"
    assert call("recompose", *options)[0] == 0
    [answer] = json.loads(call("predict", "number 4", "--json", *options[2:])[1])
    assert answer["label"] in {"even", "odd"}
    [route] = json.loads(call("route", "number 4", "--json", *options[2:])[1])
    assert route["weights"] == answer["weights"] and route["expert"] == "parity"
    assert call("export", "parity", "--to", "peft", *options)[0] == 0
    from peft import LoraConfig

    assert LoraConfig.from_pretrained("parity-peft").r == 2


def test_blocks_and_targets_are_an_adapters(call) -> None:
    code, _, err = call("new-expert", "parity", "--blocks", "2")
    assert code == 2 and "--form lora as well" in err


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ("a pickle alone", (), "nothing is unpickled here"),
        ("a head", (), "A head comes from the package's labels"),
        ("no folder", (), "adapter_config.json"),
        ("", ("--form", "mlp"), "--from peft:DIR"),
        ("", ("--rank", "4"), "--from peft:DIR"),
        ("", ("--reads-tap", "1"), "--from peft:DIR"),
    ],
)
def test_what_cannot_be_taken_in_leaves_nothing_behind(
    environment, plain, save_adapter, rows, call, tmp_path, change, more, message
) -> None:
    environment.install(plain)
    adapter = save_adapter()
    if change == "a pickle alone":
        (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    elif change == "a head":
        config = json.loads((adapter / CONFIG).read_text())
        (adapter / CONFIG).write_text(json.dumps(config | {"modules_to_save": ["score"]}))
        head = {"base_model.model.score.weight": torch.ones(2, 128)}
        save_file(load_file(adapter / WEIGHTS) | head, adapter / WEIGHTS)
    elif change == "no folder":
        adapter = tmp_path / "nowhere"
    options = ("--backbone", "tiny-random", *more)
    code, _, err = call(
        "new-expert", "parity", "--from", f"peft:{adapter}", "--data", rows, *options
    )
    assert code in {1, 2} and message in err and "expected" in err
    assert not Path("red-expert-parity").exists()


def test_an_expert_that_is_no_adapter_is_not_exported(call) -> None:
    code, _, err = call("export", "range3", "--to", "peft")
    assert code == 2 and "an expert of the form 'lora'" in err and "'residual'" in err
    assert not Path("range3-peft").exists()
