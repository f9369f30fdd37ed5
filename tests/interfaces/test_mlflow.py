"""A generation as a model of MLflow: the host's answers, from the folder's own bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import redhost

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow warns of types of its own
    import mlflow.pyfunc
    from redhost_mlflow.export import export_generation

from mlflow.exceptions import MlflowException

pytestmark = pytest.mark.filterwarnings("ignore:Operation with range")  # MLflow's, with pandas 3

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(home, tmp_path_factory) -> Path:
    """A model whose author's home is gone."""
    away = tmp_path_factory.mktemp("mlflow")
    shutil.copytree(home, away / "home")
    folder = away / "model"
    export_generation(redhost.Host.open(away / "home"), folder)
    shutil.rmtree(away / "home")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_it_answers_as_the_host_does_bit_for_bit_and_writes_nothing(home, folder, sums) -> None:
    texts, before = [*sums(60), "good morning to you"], contents(folder)
    expected = redhost.Host.open(home).predict(texts)
    model = mlflow.pyfunc.load_model(str(folder))
    found = model.predict(pd.DataFrame({"text": texts}))
    assert found["answer"].tolist() == [a.label for a in expected]
    assert found["probability"].tolist() == [a.probability for a in expected]
    assert found["weight"].tolist() == [max(a.weights.values()) for a in expected]
    assert found["declined"].tolist() == [a.declined for a in expected] and expected[-1].declined
    assert contents(folder) == before
    names = [c.name for c in model.metadata.signature.outputs]
    assert names == found.columns.tolist()


def test_the_folder_says_what_it_is_and_what_it_needs(home, folder) -> None:
    record = redhost.Host.open(home).generations.load(1)
    model = mlflow.models.Model.load(str(folder))
    assert model.metadata["redhost_generation"] == 1
    assert model.metadata["redhost_digest"] == record.digest
    assert model.metadata["redhost_experts"] == [f"range{n}" for n in range(1, 6)]
    example = model.load_input_example(str(folder))
    assert len(mlflow.pyfunc.load_model(str(folder)).predict(example)) == len(example) == 2
    required = (folder / "requirements.txt").read_text().split()
    assert f"redhost=={redhost.__version__}" in required
    assert not [line for line in required if "+" in line], "no index has a build of one machine"
    assert not list(folder.rglob("*.pkl"))


def test_one_generation_is_one_version(home, folder, tmp_path) -> None:
    before = contents(folder)
    again = export_generation(redhost.Host.open(home), folder, generation=1)
    assert (again.number, again.written) == (1, False)
    assert contents(folder) == before
    other = tmp_path / "other"
    shutil.copytree(home, other)
    with redhost.Host.open(other, backbone="tiny") as host:
        assert host.recompose(decline=0.1).generation == 2
        with pytest.raises(redhost.UsageError, match="generation 1"):
            export_generation(host, folder)
        assert export_generation(host, tmp_path / "one", generation=1).number == 1
    assert contents(folder) == before


@pytest.mark.parametrize("there", ["file", "empty folder"])
def test_what_else_is_there_stays(home, tmp_path, there) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine") if there == "file" else taken.mkdir()
    with pytest.raises(redhost.UsageError):
        export_generation(redhost.Host.open(home), taken)
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_damage_is_refused_when_it_is_loaded(folder, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    weights = next(copy.rglob("router.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(redhost.errors.IntegrityError, match="router"):
        mlflow.pyfunc.load_model(str(copy))


@pytest.mark.parametrize("rows", [{"question": ["What is 1 plus 1?"]}, {"text": ["a", " "]}])
def test_a_table_without_texts_is_named(folder, rows) -> None:
    with pytest.raises(MlflowException, match="text"):
        mlflow.pyfunc.load_model(str(folder)).predict(pd.DataFrame(rows))


def test_mlflows_own_server_answers(folder, tmp_path) -> None:
    with serving(folder, tmp_path / "log") as url:
        status, answered = post(url, {"dataframe_split": rows("What is 37 plus 12?")})
        assert (status, answered["predictions"][0]["answer"]) == (200, "49")
        status, refused = post(url, {"dataframe_split": rows("What is 1 plus 1?", "")})
        assert status == 400 and "row 1" in refused["message"]


def rows(*texts: str) -> dict[str, Any]:
    return {"columns": ["text"], "data": [[text] for text in texts]}


def post(url: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{url}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.load(e)


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[str]:
    """Run ``redhost mlflow``'s folder under ``mlflow models serve``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [BIN / "mlflow", "models", "serve", "-m", folder, "-p", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
    with log.open("w") as written:
        child = subprocess.Popen(
            [*command, "--env-manager", "local"],
            stdout=written,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        for _ in range(600):
            assert child.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"{url}/ping").close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait()
