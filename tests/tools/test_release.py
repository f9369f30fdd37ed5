"""`make release` on a project of two packages: what it refuses, and that pip installs from it."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import release

from redhost.registry.environment.trust import wheel_digest

SETTINGS = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.2"
requires-python = ">=3.11"
"""


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def write_project(root: Path) -> Path:
    """Write a host and one package, and commit them."""
    for name, text in {
        "pyproject.toml": SETTINGS.format(name="a-host"),
        "src/a_host/__init__.py": "",
        "plugins/b/pyproject.toml": SETTINGS.format(name="b.package"),
        "plugins/b/src/b_package/__init__.py": "B = 1\n",
        "CHANGELOG.md": "# Changelog\n\n## 1.2 (2026-11-21)\n\n- All new.\n",
        ".gitignore": "build/\ndist/\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "all")
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was released once."""
    root = write_project(tmp_path_factory.mktemp("released"))
    release.main(["--root", str(root)])
    return root


def sums(root: Path) -> str:
    return (root / "dist/SHA256SUMS").read_text("utf-8")


def install(index: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Let the real pip install the package from an index, and from nowhere else."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--no-cache-dir",
        "--no-deps",
        "-q",
    ]
    command = [*pip, "--index-url", index.as_uri(), "--target", str(target), "b-package==1.2"]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_release_is_archives_sums_and_an_index(released: Path) -> None:
    names = {p.name for p in (released / "dist").iterdir()}
    archives = {
        "a_host-1.2-py3-none-any.whl",
        "a_host-1.2.tar.gz",
        "b_package-1.2-py3-none-any.whl",
    }
    described = {f"{n}.cdx.json" for n in archives if n.endswith(".whl")}
    described.add("provenance.intoto.json")
    assert names == archives | described | {"SHA256SUMS", "simple"}
    assert sums(released).splitlines() == [
        f"{hashlib.sha256((released / 'dist' / n).read_bytes()).hexdigest()}  {n}"
        for n in sorted(archives | described)
    ]


def test_pip_installs_from_the_index_and_refuses_other_bytes(
    released: Path, tmp_path: Path
) -> None:
    dist = shutil.copytree(released / "dist", tmp_path / "dist")
    assert install(dist / "simple", tmp_path / "site").returncode == 0
    assert (tmp_path / "site/b_package/__init__.py").read_text() == "B = 1\n"
    wheel = dist / "b_package-1.2-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\n")
    refused = install(dist / "simple", tmp_path / "other")
    assert refused.returncode == 1 and "DO NOT MATCH THE HASHES" in refused.stderr


def test_by_the_constraints_pip_takes_ours_from_the_folder_alone(
    released: Path, tmp_path: Path
) -> None:
    dist = shutil.copytree(released / "dist", tmp_path / "dist")
    pins = release.write_pins(dist)
    wheel = dist / "b_package-1.2-py3-none-any.whl"
    assert f"b-package @ {wheel.as_uri()}" in pins.read_text("utf-8").splitlines()
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "-q", "--no-deps", "--no-index"]
    command = [*pip, "-c", str(pins), "--target", str(tmp_path / "site"), "b-package==1.2"]
    assert subprocess.run(command, check=False).returncode == 0
    assert (tmp_path / "site/b_package/__init__.py").read_text() == "B = 1\n"


def write_wheel(path: Path, files: dict[str, str]) -> Path:
    """Write a wheel with a RECORD that lists its files with the digest of nothing."""
    info = f"{path.name.rpartition('-py3')[0]}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        rows = "".join(f"{name},sha256=0,0\n" for name in files)
        archive.writestr(f"{info}/RECORD", f"{rows}{info}/RECORD,,\n")
    return path


def test_the_hosts_wheel_tells_the_digests_of_the_plugins_wheels(tmp_path: Path) -> None:
    host = write_wheel(
        tmp_path / "redhost-1.2-py3-none-any.whl",
        {"redhost/__init__.py": "", release.DIGESTS: "{}\n", "redhost/z.py": ""},
    )
    write_wheel(tmp_path / "redhost_b-1.2-py3-none-any.whl", {"redhost_b/__init__.py": "B = 1\n"})
    write_wheel(tmp_path / "red_c-1.2-py3-none-any.whl", {"red_c/__init__.py": ""})
    release.write_digests(tmp_path)
    with zipfile.ZipFile(host) as archive:
        listed = archive.read(release.DIGESTS)
        record = archive.read("redhost-1.2.dist-info/RECORD").decode().splitlines()
        assert len(archive.namelist()) == 4
    digest = wheel_digest({"redhost_b/__init__.py": b"B = 1\n"})
    assert json.loads(listed) == {"redhost-b": digest}
    sha = base64.urlsafe_b64encode(hashlib.sha256(listed).digest()).rstrip(b"=").decode()
    assert record[1] == f"{release.DIGESTS},sha256={sha},{len(listed)}"
    assert record[0] == "redhost/__init__.py,sha256=0,0"
    first = host.read_bytes()
    release.write_digests(tmp_path)
    assert host.read_bytes() == first


def test_equal_commits_give_equal_bytes(released: Path) -> None:
    first = sums(released)
    for path in released.rglob("*.py"):
        path.touch()
    release.main(["--root", str(released)])
    assert sums(released) == first


def test_a_tree_that_differs_from_its_commit_is_refused(project: Path) -> None:
    (project / "src/a_host/new.py").write_text("")
    with pytest.raises(SystemExit, match=r"1 files differ from the commit, src/a_host/new\.py"):
        release.main(["--root", str(project)])
    assert not (project / "dist").exists()


def test_a_version_without_a_heading_is_refused(project: Path) -> None:
    (project / "CHANGELOG.md").write_text("# Changelog\n\n## 1.1 (2026-01-01)\n\n## 1.0\n")
    git(project, "commit", "-qam", "older")
    with pytest.raises(SystemExit, match=r"expected a heading '## 1\.2', found 1\.1, 1\.0"):
        release.main(["--root", str(project)])


def test_a_release_that_fails_leaves_the_last_one(project: Path) -> None:
    (project / "dist").mkdir()
    (project / "dist/SHA256SUMS").write_text("of the last\n")
    settings = project / "pyproject.toml"
    settings.write_text(settings.read_text().replace("hatchling.build", "nowhere"))
    git(project, "commit", "-qam", "broken")
    with pytest.raises(subprocess.CalledProcessError):
        release.main(["--root", str(project)])
    assert sums(project) == "of the last\n"
