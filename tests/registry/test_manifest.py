from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redhost.registry.fields import check_valid
from redhost.registry.manifest import (
    ExpertManifest,
    dumps,
    json_schema,
    parse_backbone,
    parse_expert,
)
from redhost.registry.violations import Violation

ODD = st.sampled_from([None, True, -1, 0, 2**70, 1e300, "", "a\n", "\ud800", [], {}, [[]], "x:y"])


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_anywhere_is_a_violation_or_valid(make_expert: Any, data: st.DataObject) -> None:
    manifest = json.loads(make_expert("a")["expert.json"])
    key = data.draw(st.sampled_from(sorted(manifest)))
    if isinstance(manifest[key], dict) and data.draw(st.booleans()):
        manifest[key][data.draw(st.sampled_from(sorted(manifest[key])))] = data.draw(ODD)
    else:
        manifest[key] = data.draw(ODD)
    found = parse_expert(json.dumps(manifest).encode())
    if isinstance(found, ExpertManifest):
        check_valid(found)
        assert parse_expert(dumps(found)) == found
    else:
        assert found.code.startswith("manifest_")


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused_without_a_crash(data: bytes) -> None:
    assert isinstance(parse_expert(data), Violation)
    assert isinstance(parse_backbone(data), Violation)


def test_backbones_round_trip(make_backbone: Any) -> None:
    manifest = make_backbone()
    assert parse_backbone(dumps(manifest)) == manifest


def test_the_schema_is_closed_and_printable() -> None:
    schema = json.loads(json.dumps(json_schema("expert")))
    assert schema["$defs"]["ExpertManifest"]["additionalProperties"] is False
