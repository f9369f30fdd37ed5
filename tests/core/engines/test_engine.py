"""Jobs as data: what a key covers, and what running one promises."""

from __future__ import annotations

import msgspec
import pytest
import torch

import redhost
from redhost.core.engines import engine, jobs

FILES = {"one": b"1", "two": b"22"}


def echo(name: str = "echo", **arguments) -> tuple[redhost.Job, dict[str, bytes]]:
    made = redhost.Jobs()
    return made.add(name, "echo", arguments, made.put("files", FILES)), made.inputs


def test_a_job_returns_files_as_it_made_them() -> None:
    job, inputs = echo()
    told = redhost.run_job(job, inputs)
    assert told == redhost.JobResult(key=job.key, files=FILES)


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
    job, _ = echo()
    assert msgspec.structs.replace(job, **{field: other}).key != job.key


def test_the_key_is_of_content_and_no_name() -> None:
    job, _ = echo()
    inputs = dict(reversed(job.inputs.items()))
    assert msgspec.structs.replace(job, name="another", inputs=inputs).key == job.key
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=redhost.Job)
    assert wire == job and wire.key == job.key


@pytest.mark.parametrize(
    ("change", "said"),
    [({"function": "os.system"}, "no function 'os.system'"), ({"version": 9}, "of version 9")],
)
def test_only_the_closed_set_runs(change, said) -> None:
    job, inputs = echo("expert 'x'")
    told = redhost.run_job(msgspec.structs.replace(job, **change), inputs)
    assert told.files == {} and told.error.startswith("expert 'x': this worker has")
    assert said in told.error


def test_a_worker_with_other_libraries_refuses() -> None:
    job, inputs = echo()
    job = msgspec.structs.replace(job, versions={**job.versions, "torch": "2.0"})
    told = redhost.run_job(job, inputs)
    assert "expected torch 2.0, as where the job was made, found torch" in told.error


def test_the_twin_without_that_guard_computes_under_a_false_key(monkeypatch) -> None:
    monkeypatch.setattr(engine, "_require_same_versions", lambda job: None)
    job, inputs = echo()
    job = msgspec.structs.replace(job, versions={"torch": "2.0"})
    assert redhost.run_job(job, inputs).files  # kept as what torch 2.0 would have made


def test_a_job_that_raises_is_one_line_that_says_who() -> None:
    job, inputs = echo("shard 7", seconds="soon\n\x1b[31m")
    told = redhost.run_job(job, inputs)
    assert told.error.startswith("shard 7: ValueError: could not convert") and told.files == {}
    assert "\n" not in told.error and "\x1b" not in told.error


def test_threads_are_the_jobs_and_then_the_callers_again(monkeypatch) -> None:
    seen = []

    def look(job, files):
        seen.append(torch.get_num_threads())
        raise ValueError

    monkeypatch.setattr(jobs, "FUNCTIONS", {"echo": jobs.Function(1, look)})
    torch.set_num_threads(2)
    job, inputs = echo()
    redhost.run_job(job, inputs)
    assert seen == [1] and torch.get_num_threads() == 2
