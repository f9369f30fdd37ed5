"""The shrinker: what is kept, the round trip bit for bit, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from red_lab.cli import shrink
from red_lab.shrink import Small, aligned, find_blocks, keep_last, read_state, shrink_file
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import redhost
from redhost.testing import tiny_backbone

BLOCKS = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> dict[str, torch.Tensor]:
    """Return the tensors of an ordinary model: three blocks, an embedding, a norm."""
    folder = tiny_backbone(tmp_path_factory.mktemp("base"))
    return read_state(folder / "model.safetensors")


@pytest.fixture
def trained(base) -> dict[str, torch.Tensor]:
    """Return a legacy checkpoint: the model within a wrapper, its last block, norm and parts new.

    The language-model head is the embedding itself; one expert is a slice of another's matrix.
    """
    state = {f"backbone.model.{n}": t.clone() for n, t in base.items()}
    for name in state:
        if ".layers.2." in name or name.endswith("model.norm.weight"):
            state[name] += 0.5
    state["backbone.lm_head.weight"] = state["backbone.model.embed_tokens.weight"]
    whole = torch.randn(8, 16)
    state |= {"experts.0.U": whole[:4], "experts.1.U": whole[4:], "experts.0.V": whole[:4].T}
    state |= {"experts.0.layers.0.weight": torch.ones(2), "router.embedding": torch.ones(3)}
    state["router.weight"] = state["router.tied"] = torch.randn(5, 16)
    return state


def same_bits(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        one[n].dtype == two[n].dtype
        and torch.equal(
            one[n].contiguous().view(-1).view(torch.uint8),
            two[n].contiguous().view(-1).view(torch.uint8),
        )
        for n in one
    )


def restore(base: dict[str, torch.Tensor], small: Small) -> dict[str, torch.Tensor]:
    """Return the whole checkpoint, from what was kept and the base."""
    theirs = aligned(base, small.blocks)
    whole = {n: theirs[n] for n in small.dropped} | dict(small.tensors)
    return whole | {name: whole[target] for name, target in small.tied.items()}


def read_small(path: Path) -> Small:
    """Read a shrunk file by its metadata."""
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    assert about["schema"] == "red-lab.small/1"
    return Small(
        blocks=about["blocks"],
        tensors=load_file(path),
        tied=json.loads(about["tied"]),
        dropped=tuple(json.loads(about["dropped"])),
        digest=about["digest"],
    )


@pytest.mark.parametrize("wrapped", [None, "model_state_dict", "state_dict", "model"])
def test_the_round_trip_is_the_same_bits(tmp_path, base, trained, wrapped) -> None:
    file = tmp_path / "red.pt"
    torch.save({wrapped: trained, "epoch": 8} if wrapped else trained, file)
    report = shrink_file(file, last=1)
    small = read_small(tmp_path / "red-small.safetensors")
    assert same_bits(restore(base, small), trained)
    assert report["bytes_after"] < report["bytes_before"] / 2
    assert (report["blocks"], report["kept_blocks"]) == (BLOCKS, 1)


def test_what_remains_is_the_top_the_norm_and_everything_outside_the_trunk(trained) -> None:
    small = keep_last(trained, 1)
    outside = {n for n in trained if n.startswith(("experts.", "router."))} - {"router.weight"}
    top = {n for n in trained if ".layers.2." in n}
    assert set(small.tensors) == top | outside | {"backbone.model.norm.weight"}
    assert small.tied == {
        "backbone.lm_head.weight": "backbone.model.embed_tokens.weight",
        "router.weight": "router.tied",
    }


def test_no_block_at_all_may_remain_or_all_of_them(trained, base) -> None:
    none, every = keep_last(trained, 0), keep_last(trained, BLOCKS)
    assert not [n for n in none.tensors if ".model.layers." in n]
    assert {n for n in trained if ".model.layers." in n} <= set(every.tensors)
    assert same_bits(restore(base, every), trained)
    with pytest.raises(redhost.UsageError, match="expected 0 to 3, found 4"):
        keep_last(trained, BLOCKS + 1)


def test_with_a_base_only_what_differs_from_it_remains(trained, base) -> None:
    trained["backbone.model.layers.2.mlp.up_proj.weight"] = base["layers.2.mlp.up_proj.weight"]
    small = keep_last(trained, BLOCKS, base=base)
    theirs = {n for n in small.tensors if n.startswith("backbone.")}
    changed = {n for n in trained if ".layers.2." in n} | {"backbone.model.norm.weight"}
    assert theirs == changed - {"backbone.model.layers.2.mlp.up_proj.weight"}
    assert same_bits(restore(base, small), trained)


def test_a_base_need_hold_a_tied_embedding_only_once(trained, base) -> None:
    embedding = trained["backbone.model.embed_tokens.weight"]
    trained["backbone.model.tok_embeddings.weight"] = embedding
    assert same_bits(restore(base, keep_last(trained, 1)), trained)


def test_a_sign_of_zero_is_a_difference(trained, base) -> None:
    name = "layers.2.input_layernorm.weight"
    base = {**base, name: torch.zeros(16)}
    trained[f"backbone.model.{name}"] = -torch.zeros(16)
    assert f"backbone.model.{name}" in keep_last(trained, 1, base=base).tensors


def test_what_would_be_lost_is_refused(trained, base) -> None:
    trained["backbone.model.layers.1.mlp.up_proj.weight"] += 1
    with pytest.raises(redhost.UsageError, match=r"found backbone.model.layers.1.mlp.up_proj"):
        keep_last(trained, 1, base=base)
    assert same_bits(restore(base, keep_last(trained, 2, base=base)), trained)


def test_the_digest_is_of_the_dropped_tensors_alone(trained, base) -> None:
    one = keep_last(trained, 1)
    trained["router.weight"] = trained["router.weight"] + 1
    assert keep_last(trained, 1).digest == one.digest
    trained["backbone.model.layers.0.mlp.up_proj.weight"] += 1
    assert keep_last(trained, 1).digest != one.digest


def test_a_shrunk_checkpoint_is_not_shrunk_again(trained) -> None:
    small = keep_last(trained, 1)
    with pytest.raises(redhost.UsageError, match="not a whole model"):
        keep_last({n: t for n, t in small.tensors.items() if "experts" not in n}, 1)


@pytest.mark.parametrize(
    ("names", "blocks", "frozen"),
    [
        ("h.0.w h.1.w wte.weight wpe.weight ln_f.weight", "h", 3),
        (
            "bert.embeddings.LayerNorm.weight bert.encoder.layer.0.w bert.encoder.layer.1.w "
            "bert.pooler.w classifier.weight",
            "bert.encoder.layer",
            2,
        ),
        (
            "model.decoder.embed_tokens.weight model.decoder.layers.0.w model.decoder.layers.1.w "
            "experts.0.layers.0.w experts.0.layers.1.w member.weight",
            "model.decoder.layers",
            2,
        ),
    ],
)
def test_blocks_and_embeddings_are_found_by_any_models_names(names, blocks, frozen) -> None:
    state = {n: torch.ones(9 if "model" in n else 3) for n in names.split()}
    found = find_blocks(state)
    assert (found.name, found.count) == (blocks, 2)
    assert len(keep_last(state, 1).dropped) == frozen


def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(tmp_path) -> None:
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    torch.save({"model": {"layers.0.w": torch.ones(1)}, "extra": Trap()}, tmp_path / "red.pt")
    with pytest.raises(redhost.UsageError, match="a file of tensors and nothing else") as caught:
        read_state(tmp_path / "red.pt")
    assert not (tmp_path / "sprung").exists() and "\n" not in str(caught.value)


def test_files_that_are_no_state_of_tensors_are_refused_in_one_line(tmp_path) -> None:
    torch.save({"layers.0.w": torch.ones(1), "lr": 0.1}, tmp_path / "mixed.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    torch.save({"layers.0.w": torch.ones(3, 3).to_sparse()}, tmp_path / "sparse.pt")
    save_file({"head.weight": torch.ones(1)}, tmp_path / "headless.safetensors")
    for name in ("text.pt", "text.safetensors", "text.gguf", "empty.pt"):
        (tmp_path / name).write_text("" if name == "empty.pt" else "weights\n")
    for file in sorted(tmp_path.iterdir()):
        with pytest.raises(redhost.UsageError) as caught:
            shrink_file(file, last=0)
        assert "\n" not in str(caught.value), file.name
    assert not list(tmp_path.glob("*-small.safetensors"))


def test_the_input_is_never_overwritten(tmp_path, trained) -> None:
    file, link = tmp_path / "red.pt", tmp_path / "link.safetensors"
    torch.save(trained, file)
    link.symlink_to(file)
    before = file.read_bytes()
    for out in (file, link):
        with pytest.raises(redhost.UsageError, match="is the input"):
            shrink_file(file, last=1, out=out)
    assert file.read_bytes() == before


def test_the_command_prints_sizes_and_leaves_nothing_else_behind(tmp_path, trained) -> None:
    torch.save(trained, tmp_path / "red.pt")
    arguments = ["--in", str(tmp_path / "red.pt"), "--trainable-last-n-layers", "1"]
    text = CliRunner().invoke(shrink, arguments, catch_exceptions=False).output
    report = json.loads(CliRunner().invoke(shrink, [*arguments, "--json"]).output)
    small = tmp_path / "red-small.safetensors"
    assert report["bytes_after"] == small.stat().st_size
    assert f"{report['bytes_before']:,}" in text and f"{report['bytes_after']:,}" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["red-small.safetensors", "red.pt"]
