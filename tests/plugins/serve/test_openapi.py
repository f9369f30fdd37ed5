"""The published OpenAPI against the server: every status declared, every answer as described."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from redhost_serve.server import running
from redhost_serve.service import Options
from schemathesis import checks

import redhost

EXAMPLES = int(os.environ.get("EXAMPLES", "6"))
"""Requests of each route; `make test-full` tries more."""

TOKEN = "a token that nobody guesses"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that may be changed, with one generation to go to."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("openapi") / "home"
    host = redhost.Host.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))
    host.recompose()
    with running(redhost.Live(host.session), options=Options(), token=TOKEN) as (url, _):
        yield url


@pytest.fixture
def api(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


# JSON Schema cannot say that a shape counts the data.
UNSAYABLE = [checks.positive_data_acceptance]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_the_api_is_what_its_openapi_says(api: Any, mode: schemathesis.GenerationMode) -> None:
    """Bounded examples of every route; what goes in is right or wrong by the schema."""
    tried = 0
    for found in api.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def holds(case: Any) -> None:
            nonlocal tried
            tried += 1
            headers = {"Authorization": f"Bearer {TOKEN}"}
            case.call_and_validate(headers=headers, excluded_checks=UNSAYABLE)

        try:
            holds()
        except Unsatisfiable:  # nothing can be wrong with a route that reads no body
            assert not operation.body
    assert tried > 50


def test_afterwards_it_still_serves(url: str) -> None:
    from redhost_serve.client import Client

    with Client(url, token=TOKEN) as client:
        assert client.swap(1).status == 200
        assert client.infer(["What is 37 plus 12?"]).output("label") == ["49"]


def test_every_route_of_the_server_is_described(api: Any) -> None:
    paths = set(api.raw_schema["paths"])
    assert {"/v2/models/{name}/infer", "/admin/swap", "/metrics", "/v1/models"} <= paths
    for path, operations in api.raw_schema["paths"].items():
        for operation in operations.values():
            assert {"200", "413"} <= set(operation["responses"]), path
            assert not any(s.startswith("5") and s != "503" for s in operation["responses"])
