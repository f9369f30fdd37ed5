"""A crew: what is done is kept, what is kept is not done again, and engines are held to that."""

from __future__ import annotations

import msgspec
import pytest

import redhost
from redhost.core.engines import kept as kept_module
from redhost.core.engines.crew import require_all
from redhost.registry import trust


class Here:
    """An engine that remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = False

    def run(self, jobs, *, inputs, workers):
        try:
            for job in jobs:
                self.asked.append(job.name)
                yield redhost.run_job(job, inputs)
        finally:
            self.closed = True


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def kept(tmp_path) -> redhost.Kept:
    return redhost.Kept(tmp_path / "jobs")


def crew(engine) -> redhost.Crew:
    return redhost.Crew(name="here", engine=engine, workers=1)


def echoes(*texts: str) -> redhost.Jobs:
    jobs = redhost.Jobs()
    for text in texts:
        jobs.add(f"echo {text}", "echo", {}, jobs.put("in", {"text": text.encode()}))
    return jobs


def gather(engine, jobs: redhost.Jobs, **options):
    """Return what was handed on, by name, and the failures."""
    taken = {}

    def take(job, files) -> None:
        taken[job.name] = files

    return taken, crew(engine).run(jobs, take, **options)


def test_a_rerun_computes_only_what_is_missing(here, kept) -> None:
    first, _ = gather(here, echoes("a", "b"), kept=kept)
    again, _ = gather(here, echoes("a", "b", "c"), kept=kept)
    assert here.asked == ["echo a", "echo b", "echo c"]
    assert {n: again[n] for n in first} == first and again["echo c"] == {"text": b"c"}


def test_equal_work_under_two_names_is_done_once(here) -> None:
    jobs = echoes("a")
    jobs.add("the same", "echo", {}, jobs.put("in", {"text": b"a"}))
    taken, failures = gather(here, jobs)
    assert here.asked == ["echo a"] and failures == ()
    assert taken["echo a"] == taken["the same"] == {"text": b"a"}


def test_one_that_fails_is_named_and_the_others_are_done(here, kept) -> None:
    jobs = echoes("a", "b")
    jobs.listed.insert(0, msgspec.structs.replace(jobs.listed[0], name="bad", function="no"))
    taken, failures = gather(here, jobs, kept=kept)
    assert sorted(taken) == ["echo a", "echo b"]
    assert [f.job.name for f in failures] == ["bad"] and failures[0].reason.startswith("bad: ")
    with pytest.raises(redhost.JobsError, match=r"1 of 3 jobs failed: found bad: this worker"):
        require_all(failures, of=3)
    here.asked.clear()
    gather(here, jobs, kept=kept)
    assert here.asked == ["bad"]  # a failure is not kept


def test_progress_counts_what_was_there_already(here, kept) -> None:
    gather(here, echoes("a"), kept=kept)
    seen: list[tuple[int, int]] = []
    gather(here, echoes("a", "b"), kept=kept, progress=lambda *x: seen.append(x))
    assert seen == [(1, 2), (2, 2)]


def test_ctrl_c_closes_the_engine_and_keeps_what_is_finished(here, kept) -> None:
    def take(job, files) -> None:
        if job.name == "echo b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crew(here).run(echoes("a", "b", "c"), take, kept=kept)
    assert here.closed and here.asked == ["echo a", "echo b"]
    here.asked.clear()
    taken, _ = gather(here, echoes("a", "b", "c"), kept=kept)
    assert here.asked == ["echo c"] and len(taken) == 3


# -- what is kept ---------------------------------------------------------------------------------


def damage(kept: redhost.Kept) -> None:
    [folder] = kept.folder.iterdir()
    (folder / "text").write_bytes(b"other")


def test_damaged_files_are_never_handed_on(here, kept, caplog) -> None:
    gather(here, echoes("a"), kept=kept)
    damage(kept)
    taken, _ = gather(here, echoes("a"), kept=kept)
    assert taken["echo a"] == {"text": b"a"} and here.asked == ["echo a", "echo a"]
    assert "damaged" in caplog.text
    assert gather(here, echoes("a"), kept=kept)[0] == taken and len(here.asked) == 2


def test_the_twin_that_does_not_compare_digests_hands_them_on(here, kept, monkeypatch) -> None:
    monkeypatch.setattr(kept_module, "_sha", lambda data: "same")
    gather(here, echoes("a"), kept=kept)
    damage(kept)
    assert gather(here, echoes("a"), kept=kept)[0]["echo a"] == {"text": b"other"}


@pytest.mark.parametrize(
    "told", [b"{", b'{"\xff": "0"}', b'{"../x": "0"}', b'{"gone": "0"}', b'{"": ""}', b"[]"]
)
def test_a_strange_list_of_digests_means_to_do_it_again(here, kept, told) -> None:
    gather(here, echoes("a"), kept=kept)
    [folder] = kept.folder.iterdir()
    (folder / "digests.json").write_bytes(told)
    assert gather(here, echoes("a"), kept=kept)[0]["echo a"] == {"text": b"a"}
    assert len(here.asked) == 2


# -- engines that break their promise -------------------------------------------------------------


def test_an_engine_that_forgets_a_job_is_named() -> None:
    class Lazy:
        def run(self, jobs, *, inputs, workers):
            return iter([redhost.run_job(jobs[0], inputs)])

    taken, failures = gather(Lazy(), echoes("a", "b"))
    assert sorted(taken) == ["echo a"]
    assert [f.reason for f in failures] == ["echo b: engine 'here' returned nothing for it"]


@pytest.mark.parametrize("key", ["f" * 64, None])
def test_an_engine_that_returns_what_nobody_waits_for_is_an_error(key) -> None:
    class Odd:
        def run(self, jobs, *, inputs, workers):
            told = redhost.run_job(jobs[0], inputs)
            yield told
            yield told if key is None else msgspec.structs.replace(told, key=key)

    with pytest.raises(redhost.PluginError, match="nobody waits for"):
        gather(Odd(), echoes("a", "b"))


@pytest.mark.parametrize("name", ["../x", "/x", "", ".", "..", "a/b", "digests.json"])
def test_an_engine_that_returns_a_path_is_an_error(kept, name) -> None:
    class Odd:
        def run(self, jobs, *, inputs, workers):
            yield redhost.JobResult(key=jobs[0].key, files={name: b"x"})

    with pytest.raises(redhost.PluginError, match="a file for another folder"):
        gather(Odd(), echoes("a"), kept=kept)
    assert not kept.folder.exists()


def test_the_twin_without_that_guard_writes_outside(kept, monkeypatch) -> None:
    class Odd:
        def run(self, jobs, *, inputs, workers):
            yield redhost.JobResult(key=jobs[0].key, files={"../../x": b"x"})

    monkeypatch.setattr(redhost.Crew, "_judge", lambda *_: None)
    gather(Odd(), echoes("a"), kept=kept)
    assert (kept.folder.parent / "x").exists()


# -- who provides engines -------------------------------------------------------------------------

PLUGIN = """
import redhost

class Here:
    def run(self, jobs, *, inputs, workers):
        for job in jobs:
            yield redhost.run_job(job, inputs)

@redhost.hookimpl
def redhost_register_engines(register):
    register(NAME, Here())
"""


@pytest.fixture
def install(environment, tmp_path, monkeypatch):
    """Return the function that installs a plugin of engines."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))

    def put(code: str, *, trusted: bool = True) -> redhost.Plugins:
        environment.install_code("farm", {"__init__.py": code}, {"redhost.plugins": "f = farm"})
        if trusted:
            trust.trust("farm")
        return redhost.Plugins()

    return put


def test_a_trusted_plugins_engine_is_found_by_name(install) -> None:
    plugins = install(PLUGIN.replace("NAME", "'farm'"))
    found = redhost.choose_crew(plugins, engine="farm", workers=3)
    assert (found.name, found.workers, type(found.engine).__name__) == ("farm", 3, "Here")


def test_an_unknown_engine_is_one_line_with_alternatives(install) -> None:
    plugins = install(PLUGIN.replace("NAME", "'farm'"))
    with pytest.raises(redhost.UsageError) as e:
        redhost.choose_crew(plugins, engine="frm", workers=1)
    said = str(e.value)
    assert said.startswith("unknown engine 'frm'. Did you mean 'farm'? Known: farm, local.")


def test_an_untrusted_plugin_is_not_even_imported(install) -> None:
    plugins = install("raise SystemExit('imported')", trusted=False)
    with pytest.raises(redhost.UsageError, match=r"Known: local. Not trusted yet: farm"):
        redhost.choose_crew(plugins, engine="farm", workers=1)


def test_the_local_engine_cannot_be_replaced(install) -> None:
    plugins = install(PLUGIN.replace("NAME", "'local'"))
    with pytest.raises(redhost.PluginError, match="'local' is registered by"):
        redhost.choose_crew(plugins, engine="local", workers=1)


def test_no_workers_is_refused() -> None:
    with pytest.raises(redhost.UsageError, match="at least 1, found 0"):
        redhost.choose_crew(redhost.Plugins(()), engine="local", workers=0)
