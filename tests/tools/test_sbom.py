"""What released wheels ask for and come from: valid by its schema, and what is really installed."""

from __future__ import annotations

import hashlib
import json
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import provenance
import pytest
import sbom
from google.protobuf.json_format import ParseDict, ParseError
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement

TIME = 1_700_000_000
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_wheel(folder: Path, name: str, *requirements: str, file: str = "") -> Path:
    path = folder / f"{name.replace('-', '_')}-1.2-py3-none-any.whl"
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.2\nLicense-Expression: Apache-2.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        info = f"{path.name.rpartition('-py3')[0]}.dist-info"
        archive.writestr(
            f"{info}/METADATA", head + "".join(f"Requires-Dist: {r}\n" for r in requirements)
        )
        if file:
            archive.writestr(file, "")
    return path


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A host, a plugin that asks for it, and weights."""
    host = ["click>=8.1", "jinja2>=3", "gone-for-good>=2", "build; extra == 'more'"]
    write_wheel(tmp_path, "a-host", *host, "colorama; sys_platform == 'win32'")
    write_wheel(tmp_path, "b-plugin", "A_Host[more]==1.2", "pytest; extra == 'test'")
    write_wheel(tmp_path, "c-weights", file="c/expert.safetensors")
    sbom.write_sboms(tmp_path, time=TIME)
    return tmp_path


def read(dist: Path, name: str) -> dict[str, Any]:
    [path] = dist.glob(f"{name}*{sbom.SUFFIX}")
    read: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return read


def components(document: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c.get("version", "") for c in document["components"]}


def test_every_wheel_has_one_that_is_valid_and_a_change_of_its_form_is_noticed(dist: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds to import

    validator = JsonStrictValidator(SchemaVersion.from_version(sbom.SCHEMA))
    files = sorted(dist.glob(f"*{sbom.SUFFIX}"))
    assert [f.name.removesuffix(sbom.SUFFIX) for f in files] == sorted(
        p.name for p in dist.glob("*.whl")
    )
    texts = [f.read_text("utf-8") for f in files]
    assert [validator.validate_str(text) for text in texts] == [None, None, None]
    assert validator.validate_str(texts[0].replace('"purl"', '"url"'))


def test_components_are_what_is_required_here_as_installed(dist: Path) -> None:
    document = read(dist, "a_host")
    installed = {name: version(name) for name in ("click", "jinja2", "markupsafe")}
    assert components(document) == {**installed, "gone-for-good": ""}
    [click] = [c for c in document["components"] if c["name"] == "click"]
    assert click["purl"] == f"pkg:pypi/click@{version('click')}"
    edges = {row["ref"]: row.get("dependsOn", []) for row in document["dependencies"]}
    root = document["metadata"]["component"]["bom-ref"]
    assert edges[root] == sorted(
        [click["purl"], "pkg:pypi/gone-for-good", f"pkg:pypi/jinja2@{version('jinja2')}"]
    )
    assert edges[f"pkg:pypi/jinja2@{version('jinja2')}"] == [
        f"pkg:pypi/markupsafe@{version('markupsafe')}"
    ]


def test_its_own_component_is_the_wheel_with_its_digest_and_ranges(dist: Path) -> None:
    head = read(dist, "a_host")["metadata"]
    [wheel] = dist.glob("a_host*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert head["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert head["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    assert head["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert {p["value"] for p in head["component"]["properties"]} >= {"click>=8.1", "jinja2>=3"}


def test_what_is_released_together_has_its_digest_and_its_extras(dist: Path) -> None:
    document = read(dist, "b_plugin")
    [host] = [c for c in document["components"] if c["name"] == "a-host"]
    [wheel] = dist.glob("a_host*.whl")
    assert host["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert components(document)["build"] == version("build")
    assert "pytest" not in components(document)


def test_weights_are_a_model_and_ask_for_nothing(dist: Path) -> None:
    document = read(dist, "c_weights")
    assert document["metadata"]["component"]["type"] == "machine-learning-model"
    assert not document.get("components")


def test_equal_wheels_give_equal_bytes(dist: Path) -> None:
    before = {p: p.read_bytes() for p in dist.glob(f"*{sbom.SUFFIX}")}
    sbom.write_sboms(dist, time=TIME)
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize("builder", ["", "https://builder.example/1"])
def test_provenance_is_a_statement_of_in_toto_on_every_file(dist: Path, builder: str) -> None:
    files = sorted(dist.iterdir())
    path = provenance.write_provenance(
        dist, files, url="pkg:pypi/a-host@1.2", commit=COMMIT, time=TIME, builder=builder
    )
    written = json.loads(path.read_text("utf-8"))
    predicate = written["predicate"]
    statement = Statement([], written["predicateType"], predicate)
    ParseDict({**written, "type": written.pop("_type")}, statement.pb)
    statement.validate()
    assert {s["name"]: s["digest"]["sha256"] for s in written["subject"]} == {
        f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files
    }
    ParseDict(predicate, Provenance())
    with pytest.raises(ParseError):
        ParseDict({**predicate, "builtBy": "x"}, Provenance())
    source, *tools = predicate["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": COMMIT}
    assert {t["uri"] for t in tools} >= {f"pkg:pypi/hatchling@{version('hatchling')}"}
    name = builder or "pkg:pypi/a-host@1.2#Makefile"
    assert predicate["runDetails"]["builder"]["id"] == name
