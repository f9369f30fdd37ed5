"""A server under OpenTelemetry's own launcher: each request's span names who answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redhost_serve.client import Client

import redhost

pytest.importorskip("opentelemetry.instrumentation.fastapi", reason="`make .venv/interfaces`")


def test_a_requests_span_has_its_generation_and_experts_and_no_text(tmp_path) -> None:
    home = tmp_path / "home"
    redhost.Host.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(())).recompose()
    launcher = Path(sys.executable).with_name("opentelemetry-instrument")
    exporters = ("--traces_exporter", "console", "--metrics_exporter", "none")
    others = ("--logs_exporter", "none", "--service_name", "redhost")
    serve = ("redhost", "serve", "--home", str(home), "--port", "0")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "PATH": f"{launcher.parent}{os.pathsep}{os.environ['PATH']}",
    }
    with subprocess.Popen(
        [str(launcher), *exporters, *others, *serve],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        url = next(line for line in child.stdout if "serving" in line).split(" on ")[1].strip()
        with Client(url) as client:
            assert client.infer(["What is 41 plus 44?"]).status == 200
        child.send_signal(signal.SIGINT)
        shown = child.stdout.read()
    decoder, spans = json.JSONDecoder(), []
    while (start := shown.find("{")) >= 0:
        span, end = decoder.raw_decode(shown[start:])
        spans.append(span)
        shown = shown[start + end :]
    [found] = [s["attributes"] for s in spans if "redhost.generation" in s["attributes"]]
    assert (found["redhost.generation"], found["redhost.texts"]) == (1, 1)
    assert found["redhost.experts"] == ["range5"]
    assert "plus" not in json.dumps(spans)
