"""Recipes for clusters: what the schemas of Kubernetes and KServe allow, and commands of ours."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from redhost_fleet.cli import fleet
from redhost_serve.cli import serve

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text("utf-8")))


def containers(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every container of a document."""
    if isinstance(value, dict):
        yield from value.get("containers", [])
        for part in value.values():
            yield from containers(part)


def test_kubernetes_takes_every_document() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="`make .venv/fleet` installs it")
    for document in documents("kubernetes.yaml"):
        schemas.validate(document, schemas.latest_version(), strict=True)
    [unknown] = documents("kubernetes.yaml")[1:2]
    with pytest.raises(schemas.ValidationError):
        schemas.validate(unknown | {"spek": {}}, schemas.latest_version(), strict=True)


def unknown_keys(value: dict[str, Any], kind: str) -> list[str]:
    """Return the keys of a document that its class in KServe's library does not have."""
    found = importlib.util.find_spec("kserve")
    assert found is not None and found.submodule_search_locations
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", kind).lower()
    path = Path(found.submodule_search_locations[0]) / "models" / f"{name}.py"
    tables = {
        target.id: ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
        if target.id in {"openapi_types", "attribute_map"}
    }
    types = {key: tables["openapi_types"][n] for n, key in tables["attribute_map"].items()}
    wrong = [f"{kind}.{key}" for key in value if key not in types]
    for key, part in value.items():
        inner = types.get(key, "").removeprefix("list[").removesuffix("]")
        for one in part if isinstance(part, list) else [part]:
            if re.match(r"V1(alpha|beta)1", inner) and isinstance(one, dict):
                wrong += unknown_keys(one, inner)
    return wrong


def test_kserve_takes_every_document() -> None:
    if importlib.util.find_spec("kserve") is None:
        pytest.skip("`make .venv/fleet` installs it")
    runtime, service = documents("kserve.yaml")
    assert unknown_keys(runtime, "V1alpha1ServingRuntime") == []
    assert unknown_keys(service, "V1beta1InferenceService") == []
    runtime["spec"]["protocols"] = ["v2"]
    assert unknown_keys(runtime, "V1alpha1ServingRuntime") == [
        "V1alpha1ServingRuntimeSpec.protocols"
    ]


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kserve.yaml"])
def test_its_containers_run_commands_that_there_are(name: str) -> None:
    some = [c for document in documents(name) for c in containers(document)]
    assert some
    for container in some:
        program, command, *rest = [*container["command"], *container["args"]]
        assert program == "redhost"
        if command == "serve":
            given = serve.make_context("serve", rest).params
            assert (given["port"], given["host"]) == (8080, "0.0.0.0")
        else:
            group = fleet.make_context(command, rest[:1], resilient_parsing=True)
            assert fleet.get_command(group, rest[0]).make_context(rest[0], rest[1:]).params["every"]
    probes = [c[p]["httpGet"]["path"] for c in some for p in c if p.endswith("Probe")]
    assert set(probes) == {"/v2/health/ready", "/v2/health/live"}
