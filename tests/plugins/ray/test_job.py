"""Jobs as data: what a key covers, and what running one promises."""

from __future__ import annotations

import msgspec
import pytest
import redhost_ray.jobs
import torch
from redhost_ray import runner
from redhost_ray.functions import FUNCTIONS
from redhost_ray.job import job_function

from .echo import echo

FILES = {"one": b"1", "two": b"22"}


def echo_job(name: str = "echo", **arguments) -> tuple[redhost_ray.jobs.Job, dict[str, bytes]]:
    made = redhost_ray.jobs.JobBatch()
    return made.add(name, echo, arguments, made.put("files", FILES)), made.inputs


def test_a_job_returns_files_as_it_made_them() -> None:
    job, inputs = echo_job()
    result = redhost_ray.jobs.run_job(job, inputs)
    assert result == redhost_ray.jobs.JobResult(key=job.key, files=FILES)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("function", "encode-texts"),
        ("version", 2),
        ("arguments", {"seconds": 1}),
        ("inputs", {"files/one": "0" * 64}),
        ("threads", 2),
        ("versions", {"torch": "1.0"}),
    ],
)
def test_the_key_covers_all_that_bytes_depend_on(field, other) -> None:
    job, _ = echo_job()
    assert msgspec.structs.replace(job, **{field: other}).key != job.key


def test_the_key_is_that_of_caches_made_before() -> None:
    job = redhost_ray.jobs.Job(
        name="shard 1",
        function="encode-texts",
        version=1,
        arguments={"texts": ["one", "two"], "device": "cpu"},
        inputs={"backbone/backbone.json": "0" * 64},
        threads=1,
        versions={"torch": "2.0", "redhost": "1.0"},
    )
    assert job.key == "3a66a291aa34bf532a18cf9a1d7c4eaec20ae9f72fafd0b9c9f11c6d8af0ff4b"


def test_the_functions_of_jobs_are_those_of_caches_made_before() -> None:
    versions = {name: f.version for name, f in FUNCTIONS.items() if f is not echo}
    assert versions == {
        "encode-texts": 2,  # passes in tiles
        "train-expert": 3,  # given epochs and a seed, the settings are its recipe's
        "evaluate-router": 4,  # a plugin of this project may make the router
        "verify-expert": 1,
    }


def test_the_key_is_of_content_and_no_name() -> None:
    job, _ = echo_job()
    inputs = dict(reversed(job.inputs.items()))
    assert msgspec.structs.replace(job, name="another", inputs=inputs).key == job.key
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=redhost_ray.jobs.Job)
    assert wire == job and wire.key == job.key


@pytest.mark.parametrize(
    ("change", "message"),
    [({"function": "os.system"}, "no function 'os.system'"), ({"version": 9}, "of version 9")],
)
def test_only_the_closed_set_runs(change, message) -> None:
    job, inputs = echo_job("expert 'x'")
    result = redhost_ray.jobs.run_job(msgspec.structs.replace(job, **change), inputs)
    assert result.files == {} and result.error.startswith("expert 'x': this worker has")
    assert message in result.error


def test_a_worker_with_other_libraries_refuses() -> None:
    job, inputs = echo_job()
    job = msgspec.structs.replace(job, versions={**job.versions, "torch": "2.0"})
    result = redhost_ray.jobs.run_job(job, inputs)
    assert "expected torch 2.0, as where the job was made, found torch" in result.error


def test_control_without_that_guard_computes_under_a_false_key(monkeypatch) -> None:
    monkeypatch.setattr(runner, "_require_same_versions", lambda job: None)
    job, inputs = echo_job()
    job = msgspec.structs.replace(job, versions={"torch": "2.0"})
    assert redhost_ray.jobs.run_job(job, inputs).files  # cached as what torch 2.0 would have made


def test_a_job_that_raises_is_one_line_that_says_who() -> None:
    job, inputs = echo_job("shard 7", seconds="soon\n\x1b[31m")
    result = redhost_ray.jobs.run_job(job, inputs)
    assert result.error.startswith("shard 7: ValueError: could not convert") and result.files == {}
    assert "\n" not in result.error and "\x1b" not in result.error


def test_threads_are_the_jobs_and_then_the_callers_again(monkeypatch) -> None:
    seen = []

    @job_function("echo", version=1)
    def look(job, files):
        seen.append(torch.get_num_threads())
        raise ValueError

    monkeypatch.setitem(FUNCTIONS, "echo", look)
    torch.set_num_threads(2)
    job, inputs = echo_job()
    redhost_ray.jobs.run_job(job, inputs)
    assert seen == [1] and torch.get_num_threads() == 2
