"""What is refused before pip is asked for anything."""

from __future__ import annotations

import sys

import pytest
from redhost_author.signing import make_signer, new_key

from redhost.registry.environment import installer
from redhost.registry.environment.installer import fetch, find, require_free, uninstall
from redhost.registry.errors import ContractError, InstallError, UsageError
from redhost.registry.package.discover import Package
from redhost.registry.wheel.signing import read_keys


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no-such.whl", "there is no wheel no-such.whl"),
        ("--index-url=x", "expected a wheel or a name"),
        ("a b", "expected a wheel or a name"),
        ("https://example.org/x", "expected a wheel or a name"),
    ],
)
def test_a_target_that_is_neither_a_wheel_nor_a_name_is_refused(target, message) -> None:
    with pytest.raises(UsageError, match=message) as e:
        fetch(target)
    assert "\n" not in str(e.value)


def test_a_project_is_to_be_packed_first_and_of_other_folders_a_wheel_is_meant(tmp_path) -> None:
    with pytest.raises(UsageError, match="Name a wheel in it, or 'redhost add NAME --find-links"):
        fetch(str(tmp_path))
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(UsageError, match="Pack it first: 'redhost pack"):
        fetch(str(tmp_path))


def test_an_installed_expert_is_found_by_any_spelling_of_its_distribution(site) -> None:
    site.expert("a.b", dist="red-expert-a-b")
    assert find("Red_Expert.A-B").dist == "red-expert-a-b"
    assert find("red-expert-other") is None


def test_an_expert_may_be_replaced_and_no_one_elses_package(site) -> None:
    site.expert("a")
    require_free(find("red-expert-a"))

    site.install("other", {}, module="red_expert_b", group="other.group")
    taken = Package("expert", "red-expert-b", "1", "red_expert_b", None, False)
    with pytest.raises(ContractError, match="brought by other"):
        require_free(taken)
    alien = Package("expert", "other", "1", "other", None, False)
    with pytest.raises(ContractError, match="a distribution of that name is here"):
        require_free(alien)


def test_files_that_nobody_brought_are_not_overwritten(site) -> None:
    (site.folder / "red_expert_left").mkdir()
    (site.folder / "red_expert_left" / "__init__.py").touch()
    with pytest.raises(ContractError, match="files of no distribution"):
        require_free(Package("expert", "red-expert-left", "1", "red_expert_left", None, False))


def test_an_uninstallation_that_fails_does_not_claim_that_nothing_changed(monkeypatch) -> None:
    """It comes after a composition without the expert was published."""
    say = "import os; os.write(2, b'no \\xff way'); raise SystemExit(1)"
    broken = (sys.executable, "-c", say)
    monkeypatch.setattr(installer, "_tool", lambda: broken)
    with pytest.raises(InstallError, match="What is composed is without it already") as e:
        uninstall("red-expert-a")
    assert "as they were" not in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize("links", ["wheels", "{folder}/wheels", "file://{folder}/wheels"])
def test_a_folder_is_named_by_its_path_wherever_it_was_typed(
    draft, tmp_path, monkeypatch, links
) -> None:
    (folder := tmp_path / "wheels").mkdir()
    path = draft("extra").write(folder)
    monkeypatch.chdir(tmp_path)
    typed = links.format(folder=tmp_path)
    keys = read_keys([new_key(tmp_path / "author.pem")])
    make_signer(tmp_path / "author.pem")(path)
    fetched = fetch("red-expert-extra", find_links=typed, keys=keys)
    assert (fetched.source, fetched.signer) == (str(folder), keys[0].fingerprint)
    assert fetch(f"wheels/{path.name}").source == str(path)


def test_a_folder_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(InstallError, match="cannot download red-expert-extra") as refused:
        fetch("red-expert-extra", find_links=str(tmp_path / "nosuch"))
    assert "nosuch" in refused.value.found and not refused.value.found.endswith(".")


@pytest.mark.parametrize("variable", ["PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"])
@pytest.mark.parametrize("place", ["index_url", "find_links"])
def test_a_place_that_is_named_is_the_only_one(
    draft, tmp_path, monkeypatch, variable, place
) -> None:
    """A name's newer version elsewhere, in the user's settings of pip, is not taken."""
    folders = {version: tmp_path / f"of-{version}" for version in ("0.1.0", "9.0.0")}
    for version, folder in folders.items():
        page = folder / "simple" / "red-expert-extra"
        page.mkdir(parents=True)
        wheel = draft("extra", version=version).write(folder)
        (page / "index.html").write_text(f'<a href="../../{wheel.name}">{wheel.name}</a>')
    mine, other = folders.values()
    settings = {
        "PIP_FIND_LINKS": str(other),
        "PIP_EXTRA_INDEX_URL": (other / "simple").as_uri(),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
    }
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {other}\n")
    for one in settings:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(variable, settings[variable])
    named = {"index_url": (mine / "simple").as_uri(), "find_links": str(mine)}
    assert fetch("red-expert-extra", **{place: named[place]}).package.version == "0.1.0"
