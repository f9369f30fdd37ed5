"""Python, versions, libraries, the machine and the indices: broken really, and mended."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from redhost.testing import Environment

ROOT = Path(__file__).parents[3]


@pytest.fixture
def env(world):
    """No setting of the machine's for pip, nor of the user's."""
    user, machine = world.folder / "user", world.folder / "machine"
    return {"XDG_CONFIG_HOME": str(user), "XDG_CONFIG_DIRS": str(machine), "HOME": str(user)}


# -- Python and packages ---------------------------------------------------------------------------


def copy_of_redhost(world, old: str, new: str) -> None:
    """Let the environment have redhost's metadata with something else in it."""
    text = metadata.distribution("redhost").read_text("METADATA") or ""
    assert old in text
    Environment(world.site).write_info("redhost", redhost_version(), "redhost", {})
    [info] = world.site.glob("redhost-*.dist-info")
    (info / "METADATA").write_text(text.replace(old, new))


def redhost_version() -> str:
    return metadata.version("redhost")


def test_a_python_that_is_too_old_is_left_for_one_on_the_path(world) -> None:
    required = metadata.metadata("redhost")["Requires-Python"]
    copy_of_redhost(world, f"Requires-Python: {required}", "Requires-Python: >=3.39")
    [fault] = world.doctor("python")
    assert (fault["state"], fault["mend"]) == ("fail", "")
    (world.bin / "python3.40").symlink_to(sys.executable)
    [fault] = world.doctor("python")
    assert fault["mend"] == "python3.40 -m venv env"
    world.run(f"{fault['mend']} --without-pip && env/bin/python -c ''")


def test_a_plugin_of_another_version_is_installed_in_this_one(world) -> None:
    entries = {"redhost.commands": "merge = redhost_merge.cli:merge"}
    Environment(world.site).write_info("redhost-merge", "0.0.9", "redhost_merge", entries)
    # What builds it is here: pip would otherwise fetch it.
    env = {**world.offline, "PIP_NO_BUILD_ISOLATION": "0"}
    fault = world.mended("versions", env=env)
    assert "redhost-merge is 0.0.9" in fault["text"] and "plugins/redhost-merge" in fault["mend"]


def test_a_plugin_of_others_for_another_redhost_is_not_upgraded_by_its_name(world) -> None:
    needs = "Requires-Dist: redhost==99\n"
    entries = {"redhost.commands": "shout = shouter:shout"}
    Environment(world.site).write_info("shouter", "1.0", "shouter", entries)
    [info] = world.site.glob("shouter-1.0.dist-info")
    with (info / "METADATA").open("a") as file:
        file.write(needs)
    [fault] = world.doctor("versions")
    assert (fault["state"], fault["mend"]) == ("fail", "")
    assert "redhost==99" in fault["text"] and "no source of shouter is known" in fault["text"]


def test_a_library_that_is_too_old_is_upgraded(world, stub_wheel) -> None:
    Environment(world.site).write_info("lazy-loader", "0.1", "lazy_loader", {})
    folder = world.folder / "index"
    folder.mkdir()
    stub_wheel(folder, "lazy_loader", "9.9", {})
    env = {**world.offline, "PIP_FIND_LINKS": str(folder)}
    [fault] = [f for f in world.doctor("requirements", env=env) if f["state"] == "fail"]
    assert "lazy-loader>=0.5" in fault["mend"] and "found 0.1" in fault["text"]
    after = world.doctor("requirements", env=env, before=fault["mend"])
    assert not [f for f in after if f["state"] == "fail"]


def test_a_torch_that_cannot_be_imported_is_installed_again(
    world, stub_wheel, fresh_children
) -> None:
    (world.site / "torch").mkdir()
    (world.site / "torch" / "__init__.py").write_text("raise ImportError('no libtorch')\n")
    folder = world.folder / "index"
    folder.mkdir()
    stub_wheel(folder, "torch", "99.0", {"torch/__init__.py": "def zeros(n): return [0] * n\n"})
    env = {**world.offline, "PIP_FIND_LINKS": str(folder)}
    fault = world.mended("torch", env=env)
    assert "no libtorch" in fault["text"] and "torch>=2.6" in fault["mend"]


def test_a_torch_that_is_too_old_is_upgraded(world) -> None:
    Environment(world.site).write_info("torch", "1.0", "torch", {})
    [fault] = world.doctor("torch")
    assert fault["state"] == "fail" and "found 1.0" in fault["text"]


NO_TORCH = """
import sys
from redhost.cli import main

try:
    main(sys.argv[1:])
except SystemExit as e:
    print(e.code, "torch" in sys.modules, "redhost_doctor.cli" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("verb", ["doctor --json", "why apples --json", "doctor --help"])
def test_neither_verb_imports_torch(world, verb) -> None:
    command = [f"{world.bin}/python", "-c", NO_TORCH, *verb.split()]
    env = {**os.environ, "REDHOST_HOME": str(world.home)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.stderr.split()[-2:] == ["False", "True"], done.stderr
    assert done.stdout


# -- the machine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["many", "0", "4096", "-1"])
def test_a_number_of_threads_that_is_wrong_is_put_right(world, value) -> None:
    cores = len(os.sched_getaffinity(0))
    fault = world.mended("threads", env={"OMP_NUM_THREADS": value}, state="warn")
    assert value in fault["text"] and int(fault["mend"].rpartition("=")[2]) <= cores


def test_a_temporary_folder_that_is_not_there_is_made(world) -> None:
    folder = world.folder / "no such" / "folder"
    world.mended("temporary", env={"TMPDIR": str(folder)}, state="warn")
    assert folder.is_dir()


def can_mount() -> bool:
    probe = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    try:
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_mount(), reason="cannot mount a tmpfs")
def test_a_temporary_folder_in_which_nothing_may_run_is_left_for_another(world) -> None:
    folder, script = world.folder / "noexec", world.folder / "script"
    folder.mkdir()
    script.write_text(
        f"mount -t tmpfs -o noexec,size=1m tmpfs {folder}\n"
        "redhost doctor temporary > before\n"
        "eval \"$(sed -n 's/.*mend: //p' before)\"\n"
        "grep '^temporary' before && redhost doctor temporary\n"
    )
    env = {"TMPDIR": str(folder), "HOME": str(world.folder / "user")}
    before, after = world.run_mounting(script, env=env)
    assert before.split()[1] == "warn" and "noexec" in before
    assert after.split()[1] == "ok" and str(world.folder / "user") in after


# -- indices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "mend"),
    [
        ("PIP_INDEX_URL", "http://me:secret@index.example/simple", "unset PIP_INDEX_URL"),
        ("PIP_EXTRA_INDEX_URL", "file:///no/such/index", "unset PIP_EXTRA_INDEX_URL"),
        ("PIP_FIND_LINKS", "/no/such/folder / ", "export PIP_FIND_LINKS=/"),
        ("PIP_TRUSTED_HOST", "index.example", "unset PIP_TRUSTED_HOST"),
        ("UV_INDEX", "ours=http://index.example/simple", "unset UV_INDEX"),
        ("UV_INSECURE_HOST", "index.example", "unset UV_INSECURE_HOST"),
    ],
)
def test_an_index_that_is_not_there_or_can_be_forged_is_left_out(world, name, value, mend) -> None:
    fault = world.mended("index", env={name: value}, state="warn")
    assert fault["mend"] == mend and "secret" not in fault["text"]


@pytest.mark.parametrize("url", ["https://pypi.org/simple", "http://localhost:3141/simple"])
def test_an_index_that_is_encrypted_or_of_this_machine_is_no_fault(world, url) -> None:
    [finding] = world.doctor("index", env={"PIP_INDEX_URL": url})
    assert finding["state"] == "ok" and finding["text"].startswith("pip has ")


def test_a_setting_in_pips_own_file_is_changed_there(world, env) -> None:
    file = world.folder / "user" / "pip" / "pip.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[global]\nfind-links =\n  /no/such/folder\n  /tmp\ntrusted-host = a.example\n")
    script = world.folder / "script"
    script.write_text(
        "unset PIP_CONFIG_FILE\n"
        "redhost doctor index > before\n"
        "eval \"$(sed -n 's/.*mend: //p' before)\"\n"
        "cat before && redhost doctor index\n"
    )
    lines = world.run(f"sh {script}", env=env).splitlines()
    faults = [line for line in lines if "a.example" in line or "/no/such/folder" in line]
    assert len(faults) == 2 and {line.split()[1] for line in faults} == {"warn"}
    assert file.read_text().split() == ["[global]", "find-links", "=", "/tmp"]


def test_a_setting_in_the_file_that_a_variable_names_is_left_out_with_it(world) -> None:
    file = world.folder / "pip.conf"
    file.write_text("[install]\nindex-url = http://index.example/simple\n")
    fault = world.mended("index", env={"PIP_CONFIG_FILE": str(file)}, state="warn")
    assert fault["mend"] == "unset PIP_CONFIG_FILE"
