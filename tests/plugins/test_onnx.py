"""Encoders on onnxruntime: the same answers, an identity of their own, held to torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from red_lab.newsgroups import encoder, lines

import redhost
from redhost.registry.environment import trust

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: make .venv/peers")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: make .venv/peers")

from redhost_onnx import ENGINES, export
from redhost_onnx.encoder import OnnxEncoder

TEXTS = [f"What is {n} plus {41 - n % 37}?" for n in range(1, 40)] + ["1", "12 plus 30"]


@pytest.fixture(scope="module", autouse=True)
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDHOST_CONFIG", str(tmp_path_factory.mktemp("config")))
        patch.setenv("REDHOST_ONNX_CACHE", str(tmp_path_factory.mktemp("onnx")))
        trust.trust("redhost-onnx")
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    with redhost.Host.open(folder, device="onnx") as host:
        host.recompose()
    return folder


@pytest.fixture(scope="module")
def torchs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redhost.Host]:
    """The same on torch."""
    plugins = redhost.plugins.Plugins(())
    with redhost.Host.open(tmp_path_factory.mktemp("torch"), plugins=plugins) as host:
        host.recompose()
        yield host


def engine(
    trunk: redhost.authoring.TextEncoder, name: str = "onnx", *, of: str = "f"
) -> OnnxEncoder:
    return OnnxEncoder(trunk, of * 64, engine=name)


def off(h: torch.Tensor, other: torch.Tensor) -> float:
    return float(((h - other).norm(dim=1) / other.norm(dim=1)).max())


def test_a_generation_answers_as_on_torch_and_knows_its_engine(home, torchs) -> None:
    expected, others = torchs.predict(TEXTS), {p.name for p in torchs.cache.iterdir()}
    with redhost.Host.open(home) as host:  # no device is named
        found, record = host.predict(TEXTS), host.generations.load(1)
        assert isinstance(host.composed.backbone.trunk, OnnxEncoder)
        own = {p.name for p in host.cache.iterdir()}
    assert [a.label for a in found] == [a.label for a in expected]
    assert all(
        abs(a.probability - b.probability) < 1e-4 for a, b in zip(found, expected, strict=True)
    )
    assert record.settings["device"] == "onnx"
    assert [*record.providers] == ["redhost-onnx"]
    assert others
    assert not own & others, "features of two engines share a file"


def test_bits_are_a_texts_own(home) -> None:
    with redhost.Host.open(home) as host:
        trunk = host.composed.backbone.trunk
    h = trunk.encode(TEXTS)
    assert torch.equal(torch.cat([trunk.encode([t]) for t in TEXTS]), h)
    assert torch.equal(trunk.encode(TEXTS[::-1]).flip(0), h)


def test_a_generation_of_an_engine_that_is_gone_says_so(home) -> None:
    with (
        redhost.Host.open(home, plugins=redhost.plugins.Plugins(())) as host,
        pytest.raises(redhost.errors.PluginError, match="redhost-onnx"),
    ):
        host.predict(TEXTS[:1])


def test_an_export_that_is_damaged_is_made_anew(torchs) -> None:
    trunk = torchs.composed.backbone.trunk
    h = engine(trunk).encode(TEXTS[:3])
    [path] = export._folder().glob(f"onnx-{'f' * 32}-*.onnx")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert torch.equal(engine(trunk).encode(TEXTS[:3]), h)
    [path] = export._folder().glob(f"onnx-{'f' * 32}-*.onnx")
    assert path.name.split(".")[-2] == export._digest(path.read_bytes())


def test_an_export_of_another_encoder_is_refused(torchs, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("REDHOST_ONNX_CACHE", str(tmp_path))
    own = torchs.composed.backbone.trunk
    other = copy.deepcopy(own.model)
    for parameter in other.parameters():
        parameter.data += 0.01
    engine(
        redhost.authoring.TextEncoder(model=other, tokenizer=own.tokenizer, pooling=own.pooling)
    )  # the file lies under the name of this fingerprint now
    with pytest.raises(redhost.errors.PluginError, match="is not the one on torch"):
        engine(own)


def test_minilm_is_within_the_tolerance_of_each_engine() -> None:
    try:
        source = encoder()
    except (PackageNotFoundError, redhost.MissingError):
        pytest.skip("all-MiniLM-L6-v2 is not installed: make .venv/text")
    trunk = redhost.Backbone.load(f"hf:{source}", pooling="mean", max_tokens=128).trunk
    texts = [*lines()[:40], "A word and another. " * 60]
    h = trunk.encode(texts)
    away = {name: off(engine(trunk, name, of="e").encode(texts), h) for name in ENGINES}
    assert all(away[name] <= ENGINES[name] for name in ENGINES), away
    assert away["onnx"] < 1e-4 < away["onnx-int8"], "one of them is the other"
