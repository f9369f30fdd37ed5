"""Certification by a crew: the verdicts of `verify_expert`, remembered by content."""

from __future__ import annotations

import msgspec
import pytest

import redhost
from redhost.core.composing.verify import verify_expert
from redhost.core.composing.workspace import read_package
from redhost.core.engines import certify as certify_module
from redhost.core.engines.certify import Claim, certify
from redhost.core.engines.local import LocalEngine
from redhost.registry.discover import from_folder
from redhost.registry.files import ExpertFiles, read_expert


class Counting:
    """The local engine, remembering whom it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, jobs, *, inputs, workers):
        self.asked += [job.name for job in jobs]
        return LocalEngine().run(jobs, inputs=inputs, workers=workers)


@pytest.fixture
def claims(expert_folders, backbone_folder, tmp_path) -> list[Claim]:
    """Three sound experts, and one that disturbs others more than its manifest says."""
    backbone = read_package(from_folder(backbone_folder))
    found = []
    for name, folder in expert_folders.items():
        files = read_expert(from_folder(folder))
        assert isinstance(files, ExpertFiles)
        found.append(Claim(name=name, files=files, backbone=backbone))
    content = dict(found[0].files.files)
    told = msgspec.json.decode(content["expert.json"])
    content["expert.json"] = msgspec.json.encode({**told, "off_domain": 1e-6})
    loud = read_expert(content)
    assert isinstance(loud, ExpertFiles)
    return [*found, Claim(name="loud", files=loud, backbone=backbone)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_crews_verdicts_are_those_computed_here(claims, workers) -> None:
    crew = redhost.Crew(name="c", engine=LocalEngine(), workers=workers)
    here = [verify_expert(c.files, backbone=c.backbone) for c in claims]
    assert certify(claims, crew=crew) == here
    assert [[v.code for v in vs] for vs in here] == [[], [], [], ["off_domain"]]


def test_a_verdict_is_computed_again_for_other_bytes_only(claims, tmp_path) -> None:
    kept, engine = redhost.Kept(tmp_path), Counting()
    crew = redhost.Crew(name="c", engine=engine, workers=1)
    first = certify(claims[:3], crew=crew, kept=kept)
    assert certify(claims, crew=crew, kept=kept)[:3] == first
    assert engine.asked == [f"expert {n!r}" for n in ("red", "green", "blue", "loud")]
    alone = Claim(name="red", files=claims[0].files, backbone=None)
    certify([alone], crew=crew, kept=kept)
    assert len(engine.asked) == 5  # without the backbone it is another question


def test_equal_experts_under_two_names_have_one_verdict_each(claims) -> None:
    engine = Counting()
    crew = redhost.Crew(name="c", engine=engine, workers=1)
    twin = Claim(name="twin", files=claims[3].files, backbone=claims[3].backbone)
    one, two = certify([claims[3], twin], crew=crew)
    assert one == two and one[0].code == "off_domain" and len(engine.asked) == 1


def test_no_verdict_is_an_error_and_never_ok(claims) -> None:
    class Broken:
        def run(self, jobs, *, inputs, workers):
            for job in jobs:
                yield redhost.JobResult(key=job.key, error=f"{job.name}: lost")

    with pytest.raises(redhost.JobsError, match="1 of 1 jobs failed: found expert 'red': lost"):
        certify(claims[:1], crew=redhost.Crew(name="c", engine=Broken(), workers=1))


def test_the_twin_that_ignores_failures_says_ok(claims, monkeypatch) -> None:
    class Broken:
        def run(self, jobs, *, inputs, workers):
            for job in jobs:
                yield redhost.JobResult(key=job.key, error="lost")

    monkeypatch.setattr(certify_module, "require_all", lambda *_, **__: None)
    crew = redhost.Crew(name="c", engine=Broken(), workers=1)
    assert certify([claims[3]], crew=crew) == [()]  # loud passes
