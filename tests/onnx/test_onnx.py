"""Encoders on onnxruntime: the same answers, an identity of their own, held to torch."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import redhost_author
import torch
from red_lab.newsgroups import encoder, lines
from redhost_author.training.packaging import save_backbone
from redhost_onnx import ENGINES, export
from redhost_onnx.encoder import OnnxEncoder
from redhost_onnx.generation import export_generation
from redhost_onnx.runtime import MODEL, TOKENIZER, ExportedAnswer, ExportedGeneration

import redhost
from redhost.core.bus.layout import FeatureLayout, FeatureSegment
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.types import BackgroundRow, write_rows
from redhost.registry.environment import python_command
from redhost.registry.errors import BackboneMismatchError
from redhost.testing import tiny_backbone

TEXTS = [f"What is {n} plus {41 - n % 37}?" for n in range(1, 40)] + ["1", "12 plus 30"]


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDHOST_CONFIG", str(tmp_path_factory.mktemp("config")))
        patch.setenv("REDHOST_ONNX_CACHE", str(tmp_path_factory.mktemp("onnx")))
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


def engine(trunk: redhost.plugins.TextEncoder, name: str = "onnx", *, of: str = "f") -> OnnxEncoder:
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


def test_a_generation_of_torch_stays_one_where_the_engine_is_named(tmp_path) -> None:
    with redhost.Host.open(tmp_path) as host:
        host.recompose()
    with redhost.Host.open(tmp_path, device="onnx") as host:
        assert not isinstance(host.composed.backbone.trunk, OnnxEncoder)
        assert host.recompose().parent == 1  # compared with it
        assert isinstance(host.composed.backbone.trunk, OnnxEncoder)


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
        redhost.plugins.TextEncoder(
            model=other, tokenizer=own.tokenizer, pooling=own.pooling, stated=own.stated
        )
    )  # the file lies under the name of this fingerprint now
    with pytest.raises(BackboneMismatchError, match="is not the one on torch"):
        engine(own)


def test_minilm_is_within_the_tolerance_of_each_engine() -> None:
    try:
        source, texts = encoder(), [*lines()[:40], "A word and another. " * 60]
    except (PackageNotFoundError, redhost.MissingError):
        pytest.skip("all-MiniLM-L6-v2 is not installed: make .venv/text")
    trunk = redhost.Backbone.load(f"hf:{source}", pooling="mean", max_tokens=128).trunk
    h = trunk.encode(texts)
    away = {name: off(engine(trunk, name, of="e").encode(texts), h) for name in ENGINES}
    assert all(away[name] <= ENGINES[name] for name in ENGINES), away
    assert away["onnx"] < 1e-4 < away["onnx-int8"], "one of them is the other"


# -- a generation without torch -------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(torchs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "generation"
    export_generation(torchs.composed, folder)
    return folder


def test_an_exported_generation_answers_as_the_host_does(exported, torchs) -> None:
    texts = [*TEXTS, "1 plus " * 200]
    for own, found in zip(
        torchs.predict(texts), ExportedGeneration(exported).answer(texts), strict=True
    ):
        assert found.probability == pytest.approx(own.probability, abs=1e-4)
        assert found.weights == pytest.approx(own.weights, abs=1e-4)
        if own.probability > 0.5:
            assert found.label == own.label
        assert (found.cut, found.declined) == (own.cut, own.declined)
        assert found.generation == own.generation
    assert found.cut == 128
    fields = {f.name for f in dataclasses.fields(redhost.Answer)}
    assert fields >= set(ExportedAnswer.__struct_fields__)


def test_it_is_answered_in_a_process_without_torch(exported) -> None:
    code = (
        "import sys; from redhost.cli import main\n"
        "try: main(['onnx', 'predict', sys.argv[1], 'What is 37 plus 12?', '--json'])\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [*python_command("-c", code), str(exported)], capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == ["False"]
    assert json.loads(done.stdout)[0]["label"] == "49"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> redhost.ComposedModel:
    """A linear and a residual expert of labels, chosen by sums over layers and hashed tokens."""
    folder = tmp_path_factory.mktemp("wide")
    source = tiny_backbone(folder / "model")
    backbone = redhost.Backbone.load(f"hf:{source}", pooling="mean", features="wide")
    own = redhost_author.write_project(
        folder / "own", kind="backbone", package_id="wide", summary="random weights"
    )
    save_backbone(
        own,
        dataclasses.replace(backbone, name="wide"),
        base={p.name: p.read_bytes() for p in source.iterdir()},
        background=write_rows(BackgroundRow(text=f"nothing {n}") for n in range(12)),
    )
    context = redhost_author.open_for_training(own)
    experts = []
    for name, form in (("red", "linear"), ("blue", "residual")):
        project = folder / name
        experts.append(
            redhost_author.write_project(
                project, kind="expert", package_id=name, summary=f"knows {name}"
            )
        )
        rows = [redhost.Row(text=f"{name} {n} {n % 7}", label=f"{name}{n % 2}") for n in range(160)]
        redhost_author.train_package(
            project,
            redhost_author.ExpertPlan(id=name, form=form),
            redhost_author.split_rows(rows),
            context=context,
            settings=redhost_author.ExpertSettings(epochs=20),
        )
    options = RecomposeOptions(router="ridge", decline=0.3, accept=True)
    return compose(own, experts, options=options).composed


def test_hashed_tokens_and_declining_are_in_the_graph(wide, tmp_path) -> None:
    record = export_generation(wide, tmp_path / "made")
    assert record.texts == 100 and record.away < 1e-4 and not record.has_shared_labels
    found = ExportedGeneration(tmp_path / "made")
    assert found.inputs == {"ids", "whole"}
    texts = [f"{name} {n} {n % 7}" for name in ("red", "blue", "green") for n in range(400, 430)]
    answers = found.answer([*texts, "qqqq!", "red 1 " * 60])
    own = wide.answer([a.input for a in answers])
    assert [a.declined for a in answers] == [a.declined for a in own]
    assert {True, False} == {a.declined for a in answers}
    for a, b in zip(answers, own, strict=True):
        assert a.probability == pytest.approx(b.probability, abs=1e-4)
        assert (a.label, a.cut) == (b.label, b.cut)


def test_what_acts_inside_the_encoder_is_refused(wide, tmp_path) -> None:
    segment = FeatureSegment(
        key="0", width=16, normalised=True, compute=None, readers=("red",), instead=True
    )
    inside = copy.copy(wide.bus)
    inside.layout = FeatureLayout(width=16, segments=(segment,))
    with pytest.raises(redhost.UsageError, match="acts inside the encoder"):
        export_generation(dataclasses.replace(wide, bus=inside), tmp_path / "made")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_a_file_that_is_another_is_refused(exported, tmp_path, name: str) -> None:
    folder = shutil.copytree(exported, tmp_path / "copy")
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(redhost.UsageError, match="is not the file that was exported"):
        ExportedGeneration(folder)
    (folder / name).unlink()
    with pytest.raises(redhost.MissingError, match=f"has no {name}"):
        ExportedGeneration(folder)


@pytest.mark.parametrize("record", ["", "{}", '{"schema": 1}'])
def test_a_folder_that_is_none_is_refused(exported, tmp_path, record: str) -> None:
    with pytest.raises(redhost.MissingError, match="redhost onnx export"):
        ExportedGeneration(tmp_path)
    (tmp_path / "generation.json").write_text(record)
    with pytest.raises(redhost.UsageError, match="is not a record"):
        ExportedGeneration(tmp_path)


def test_an_export_that_answers_otherwise_is_not_written(torchs, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("redhost_onnx.generation.TOLERANCE", 0.0)
    with pytest.raises(redhost.errors.PluginError, match="does not answer as the composition"):
        export_generation(torchs.composed, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_replaced(torchs, tmp_path) -> None:
    (tmp_path / "file").write_text("mine")
    for there in (tmp_path, tmp_path / "file"):
        with pytest.raises(redhost.UsageError, match="is there already"):
            export_generation(torchs.composed, there)
    assert (tmp_path / "file").read_text() == "mine"
