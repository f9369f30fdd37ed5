"""The bench of engines, on work small enough for a test; its figures are not looked at."""

from __future__ import annotations

import json

from red_lab.bench import engine
from red_lab.bench.section import SectionSettings


def test_the_section_measures_every_pool_on_the_same_work(tmp_path, monkeypatch) -> None:
    for name, value in {"EXPERTS": 2, "ROWS": 40, "EPOCHS": 1, "JOBS": 4}.items():
        monkeypatch.setattr(engine, name, value)
    monkeypatch.setattr(engine, "find_spec", lambda name: None)  # Ray has tests of its own
    found = json.loads(json.dumps(engine.measure(SectionSettings(runs=1, work=tmp_path))))
    pools = ["local, 1 worker", "local, 2 workers"]
    assert list(found["seconds"]) == list(found["overhead"]) == pools
    assert found["identical"] and found["speedup"]["local, 1 worker"] == [1.0, 1.0, 1.0]
    assert all(0 < share < 4 for shares in found["cores"].values() for share in shares)
    page = engine.page(found)
    assert all(f"| {pool} |" in page for pool in pools) and "are the same in all pools" in page
    assert "NOT the same" in engine.page({**found, "identical": False})
    assert "are meaningless" in engine.page({**found, "quiet": False})
    assert "are meaningless" not in engine.page({**found, "quiet": True})
