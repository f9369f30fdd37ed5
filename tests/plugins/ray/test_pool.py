"""The worker pool: finished jobs are cached and not done again, and engines are held to that."""

from __future__ import annotations

import msgspec
import pytest
import redhost_ray.jobs
from redhost_ray import cache as cache_module
from redhost_ray.pool import JobsError, require_all

import redhost
from redhost.registry.atomic import damaged_entries
from redhost.registry.environment import trust

from .echo import echo


class Here:
    """An engine that remembers the jobs it started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.closed = False

    def run(self, jobs, *, inputs, workers):
        try:
            for job in jobs:
                self.started.append(job.name)
                yield redhost_ray.jobs.run_job(job, inputs)
        finally:
            self.closed = True


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def cache(tmp_path) -> redhost_ray.jobs.JobCache:
    return redhost_ray.jobs.JobCache(tmp_path / "jobs")


def pool(engine) -> redhost_ray.jobs.WorkerPool:
    return redhost_ray.jobs.WorkerPool(name="here", engine=engine, workers=1)


def echoes(*texts: str) -> redhost_ray.jobs.JobBatch:
    jobs = redhost_ray.jobs.JobBatch()
    for text in texts:
        jobs.add(f"echo {text}", echo, {}, jobs.put("in", {"text": text.encode()}))
    return jobs


def gather(engine, jobs: redhost_ray.jobs.JobBatch, **options):
    """Return what was passed on, by name, and the failures."""
    taken = {}

    def on_result(job, files) -> None:
        taken[job.name] = files

    return taken, pool(engine).run(jobs, on_result, **options)


def test_a_rerun_computes_only_what_is_missing(here, cache) -> None:
    first, _ = gather(here, echoes("a", "b"), cache=cache)
    again, _ = gather(here, echoes("a", "b", "c"), cache=cache)
    assert here.started == ["echo a", "echo b", "echo c"]
    assert {n: again[n] for n in first} == first and again["echo c"] == {"text": b"c"}


def test_equal_work_under_two_names_is_done_once(here) -> None:
    jobs = echoes("a")
    jobs.add("the same", echo, {}, jobs.put("in", {"text": b"a"}))
    taken, failures = gather(here, jobs)
    assert here.started == ["echo a"] and failures == ()
    assert taken["echo a"] == taken["the same"] == {"text": b"a"}


def test_one_that_fails_is_named_and_the_others_are_done(here, cache) -> None:
    jobs = echoes("a", "b")
    jobs.listed.insert(0, msgspec.structs.replace(jobs.listed[0], name="bad", function="no"))
    taken, failures = gather(here, jobs, cache=cache)
    assert sorted(taken) == ["echo a", "echo b"]
    assert [f.job.name for f in failures] == ["bad"] and failures[0].reason.startswith("bad: ")
    with pytest.raises(JobsError, match=r"1 of 3 jobs failed: found bad: this worker"):
        require_all(failures, of=3)
    here.started.clear()
    gather(here, jobs, cache=cache)
    assert here.started == ["bad"]  # a failure is not cached


def test_progress_counts_what_was_there_already(here, cache) -> None:
    gather(here, echoes("a"), cache=cache)
    seen: list[tuple[int, int]] = []
    gather(here, echoes("a", "b"), cache=cache, progress=lambda *x: seen.append(x))
    assert seen == [(1, 2), (2, 2)]


def test_ctrl_c_closes_the_engine_and_keeps_what_is_finished(here, cache) -> None:
    def on_result(job, files) -> None:
        if job.name == "echo b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool(here).run(echoes("a", "b", "c"), on_result, cache=cache)
    assert here.closed and here.started == ["echo a", "echo b"]
    here.started.clear()
    taken, _ = gather(here, echoes("a", "b", "c"), cache=cache)
    assert here.started == ["echo c"] and len(taken) == 3


# -- the cache -------------------------------------------------------------------------------------


def damage(cache: redhost_ray.jobs.JobCache) -> None:
    [folder] = cache.folder.iterdir()
    (folder / "text").write_bytes(b"other")


def test_damaged_files_are_never_passed_on(here, cache, caplog) -> None:
    gather(here, echoes("a"), cache=cache)
    damage(cache)
    taken, _ = gather(here, echoes("a"), cache=cache)
    assert taken["echo a"] == {"text": b"a"} and here.started == ["echo a", "echo a"]
    assert "damaged" in caplog.text
    assert gather(here, echoes("a"), cache=cache)[0] == taken and len(here.started) == 2


def test_no_flipped_bit_of_a_cached_job_is_passed_on(here, cache) -> None:
    """Each is done again, and counted."""
    gather(here, echoes("a"), cache=cache)
    [folder] = cache.folder.iterdir()
    whole = {p: p.read_bytes() for p in folder.iterdir()}
    flips = [(p, bit) for p, data in sorted(whole.items()) for bit in range(0, 8 * len(data), 7)]
    for path, bit in flips:
        for p, data in whole.items():
            p.write_bytes(data)
        flipped = bytearray(whole[path])
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert gather(here, echoes("a"), cache=cache)[0]["echo a"] == {"text": b"a"}
    assert damaged_entries(cache.folder) == len(flips) > 100


def test_a_cache_that_cannot_be_written_stops_no_job(here, tmp_path, caplog) -> None:
    (tmp_path / "file").touch()
    without = redhost_ray.jobs.JobCache(tmp_path / "file" / "jobs")
    assert gather(here, echoes("a"), cache=without)[0]["echo a"] == {"text": b"a"}
    assert "not remembered" in caplog.text


def test_control_that_does_not_compare_digests_passes_them_on(here, cache, monkeypatch) -> None:
    monkeypatch.setattr(cache_module, "_sha", lambda data: "same")
    gather(here, echoes("a"), cache=cache)
    damage(cache)
    assert gather(here, echoes("a"), cache=cache)[0]["echo a"] == {"text": b"other"}


@pytest.mark.parametrize(
    "listed", [b"{", b'{"\xff": "0"}', b'{"../x": "0"}', b'{"gone": "0"}', b'{"": ""}', b"[]"]
)
def test_a_strange_list_of_digests_means_to_do_it_again(here, cache, listed) -> None:
    gather(here, echoes("a"), cache=cache)
    [folder] = cache.folder.iterdir()
    (folder / "digests.json").write_bytes(listed)
    assert gather(here, echoes("a"), cache=cache)[0]["echo a"] == {"text": b"a"}
    assert len(here.started) == 2


# -- engines that break their promise -------------------------------------------------------------


def test_an_engine_that_forgets_a_job_is_named() -> None:
    class Lazy:
        def run(self, jobs, *, inputs, workers):
            return iter([redhost_ray.jobs.run_job(jobs[0], inputs)])

    taken, failures = gather(Lazy(), echoes("a", "b"))
    assert sorted(taken) == ["echo a"]
    assert [f.reason for f in failures] == ["echo b: engine 'here' returned nothing for it"]


@pytest.mark.parametrize("key", ["f" * 64, None])
def test_an_engine_that_returns_what_nobody_waits_for_is_an_error(key) -> None:
    class Odd:
        def run(self, jobs, *, inputs, workers):
            result = redhost_ray.jobs.run_job(jobs[0], inputs)
            yield result
            yield result if key is None else msgspec.structs.replace(result, key=key)

    with pytest.raises(redhost.errors.PluginError, match="was not submitted"):
        gather(Odd(), echoes("a", "b"))


@pytest.mark.parametrize("name", ["../x", "/x", "", ".", "..", "a/b", "digests.json"])
def test_an_engine_that_returns_a_path_is_an_error(cache, name) -> None:
    class Odd:
        def run(self, jobs, *, inputs, workers):
            yield redhost_ray.jobs.JobResult(key=jobs[0].key, files={name: b"x"})

    with pytest.raises(redhost.errors.PluginError, match="a file for another folder"):
        gather(Odd(), echoes("a"), cache=cache)
    assert not cache.folder.exists()


def test_control_without_that_guard_writes_outside(cache, monkeypatch) -> None:
    class Odd:
        def run(self, jobs, *, inputs, workers):
            yield redhost_ray.jobs.JobResult(key=jobs[0].key, files={"../../x": b"x"})

    monkeypatch.setattr(redhost_ray.jobs.WorkerPool, "_require_expected", lambda *_: None)
    gather(Odd(), echoes("a"), cache=cache)
    assert (cache.folder.parent / "x").exists()


# -- who provides engines -------------------------------------------------------------------------

PLUGIN = """
import redhost
import redhost_ray.jobs

class Here:
    def run(self, jobs, *, inputs, workers):
        for job in jobs:
            yield redhost_ray.jobs.run_job(job, inputs)

@redhost.hookimpl
def redhost_register_engines(register):
    register(NAME, Here())
"""


@pytest.fixture
def install(environment, tmp_path, monkeypatch):
    """Return the function that installs a plugin of engines."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))

    def put(code: str, *, trusted: bool = True) -> redhost.plugins.Plugins:
        environment.install_code("farm", {"__init__.py": code}, {"redhost.plugins": "f = farm"})
        if trusted:
            trust.trust("farm")
        return redhost.plugins.Plugins()

    return put


def test_a_trusted_plugins_engine_is_found_by_name(install) -> None:
    plugins = install(PLUGIN.replace("NAME", "'farm'"))
    found = redhost_ray.jobs.choose_pool(plugins, engine="farm", workers=3)
    assert (found.name, found.workers, type(found.engine).__name__) == ("farm", 3, "Here")


def test_an_unknown_engine_is_one_line_with_alternatives(install) -> None:
    plugins = install(PLUGIN.replace("NAME", "'farm'"))
    with pytest.raises(redhost.UsageError) as e:
        redhost_ray.jobs.choose_pool(plugins, engine="frm", workers=1)
    assert str(e.value).startswith(
        "unknown engine 'frm'. Did you mean 'farm'? Known: farm, local, ray."
    )


def test_an_untrusted_plugin_is_not_even_imported(install) -> None:
    plugins = install("raise SystemExit('imported')", trusted=False)
    with pytest.raises(redhost.UsageError, match=r"Known: local, ray. Not trusted yet: farm"):
        redhost_ray.jobs.choose_pool(plugins, engine="farm", workers=1)


def test_the_local_engine_cannot_be_replaced(install) -> None:
    plugins = install(PLUGIN.replace("NAME", "'local'"))
    with pytest.raises(redhost.errors.PluginError, match="'local' is registered by"):
        redhost_ray.jobs.choose_pool(plugins, engine="local", workers=1)


def test_no_workers_is_refused() -> None:
    with pytest.raises(redhost.UsageError, match="at least 1, found 0"):
        redhost_ray.jobs.choose_pool(redhost.plugins.Plugins(()), engine="local", workers=0)
