"""A prior: weights are posteriors under the shares that are expected, and nothing is retrained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.plugins import LiveShares, write_live_shares
from redhost.registry.errors import (
    MissingError,
    SettingsError,
    StoreError,
    UnknownNameError,
    UsageError,
)
from redhost.registry.home.generations import Generations

KINDS = ["evidence", "quadratic", "ridge", "statistics", "linear", "mlp", "attention", "centroid"]
TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4", "red 3 a"]
GIVEN = {"blue": 0.7, "green": 0.2, "red": 0.1}


@pytest.fixture
def home(encoded_home: Path) -> Path:
    return encoded_home


def composed(backbone, experts, *, router: str, prior: str | None) -> RecomposeResult:
    options = RecomposeOptions(router=router, prior=prior, backbone_column=False, accept=True)
    return compose(backbone, list(experts.values()), options=options)


@pytest.mark.parametrize("router", KINDS)
def test_weights_are_those_of_bayes_rule(backbone_folder, expert_folders, router) -> None:
    prior = ",".join(f"{i}={q}" for i, q in GIVEN.items())
    plain, given = (
        composed(backbone_folder, expert_folders, router=router, prior=p) for p in (None, prior)
    )
    p, q = (torch.tensor([*r.receipt.router.shares.values()]) for r in (plain, given))
    assert given.receipt.router.shares == pytest.approx(GIVEN)
    assert plain.receipt.router.prior is None and given.receipt.router.prior is not None
    before, after = (
        torch.tensor([[*a.weights.values()] for a in r.composed.answer(TEXTS)])
        for r in (plain, given)
    )
    wanted = before * q / p
    assert torch.allclose(after, wanted / wanted.sum(-1, keepdim=True), atol=1e-5)
    assert not torch.equal(before, after)


@pytest.mark.parametrize("router", ["hard", "topk:k=1", "ridge:k=1", "statistics:k=1"])
def test_a_router_that_picks_one_picks_by_the_prior(
    backbone_folder, expert_folders, router
) -> None:
    sure = "blue=0.999999,green=1e-30,red=1e-30"
    result = composed(backbone_folder, expert_folders, router=router, prior=sure)
    picked = result.composed.answer(["nothing 4"])[0].weights
    assert picked == {"blue": 1.0, "green": 0.0, "red": 0.0}


def test_a_column_that_is_not_named_keeps_its_share(backbone_folder, expert_folders) -> None:
    result = composed(backbone_folder, expert_folders, router="linear", prior="blue=0.9,red=0.1")
    assert result.receipt.router.shares == pytest.approx(
        {"blue": 0.6, "green": 1 / 3, "red": 1 / 15}
    )


@pytest.fixture
def host(environment, backbone_folder, expert_folders, home) -> redhost.Host:
    """A host of three experts that is composed, with a prior."""
    environment.install(backbone_folder.parents[1])
    for folder in expert_folders.values():
        environment.install(folder.parents[1])
    host = redhost.Host.open(home, backbone="toy")
    host.recompose(prior="blue=0.6,green=0.2,red=0.2", accept=True)
    return host


def test_a_prior_is_published_stays_and_goes(host) -> None:
    """It is in what others load, in the lock, and in the next generation until 'cards'."""
    record = host.generations.load(1)
    assert record.settings["prior"] == "backbone=0.25,blue=0.45,green=0.15,red=0.15"
    again = redhost.Host.open(host.home, backbone="toy")
    assert again.predict(TEXTS) == host.predict(TEXTS)
    locked = host.recompose(locked=True, dry_run=True)
    assert locked.router.digest == record.router.digest
    same = host.recompose(locked=True, dry_run=True, decline=0.0)
    assert same.router.digest == record.router.digest
    with pytest.raises(UsageError, match="prior of the lock"):
        host.recompose(locked=True, dry_run=True, prior="uniform")
    left = host.detach("red", accept=True)
    assert (
        left.router.prior is not None and left.router.shares["blue"] > left.router.shares["green"]
    )
    assert host.recompose(prior="cards").router.prior is None
    assert "prior" not in host.generations.load(host.generations.current()).settings
    assert host.recompose(locked=True, dry_run=True, prior="cards").router.prior is None


def test_a_live_prior_is_what_a_server_last_saw(host) -> None:
    with pytest.raises(MissingError):
        host.recompose(prior="live")
    shares = {"backbone": 0.0, "blue": 0.5, "green": 0.25, "red": 0.25}
    write_live_shares(host.home, LiveShares(generation=1, shares=shares, texts=150))
    with pytest.raises(MissingError):
        host.recompose(prior="live")
    write_live_shares(host.home, LiveShares(generation=1, shares=shares, texts=396))
    found = host.recompose(prior="live", accept=True, dry_run=True).router.shares
    wanted = {"backbone": 1 / 400, "blue": 199 / 400, "green": 100 / 400, "red": 100 / 400}
    assert found == pytest.approx(wanted, abs=1e-5)  # nobody's share is zero
    (host.home / "live.json").write_text("{")
    with pytest.raises(StoreError):
        host.recompose(prior="live")


def test_priors_come_from_files_and_are_uniform(host, tmp_path) -> None:
    file = tmp_path / "shares.json"
    file.write_text(json.dumps({"blue": 0.5, "green": 0.25, "red": 0.25, "backbone": 0.5}))
    found = host.recompose(prior=str(file), accept=True, dry_run=True).router.shares
    assert found["blue"] == pytest.approx(1 / 3)
    even = host.recompose(prior="uniform", accept=True, dry_run=True).router
    assert (even.prior, set(even.shares.values())) == ("uniform", {0.25})


@pytest.mark.parametrize(
    ("prior", "error"),
    [
        ("blue=0.5,gren=0.5", UnknownNameError),
        ("blue=0", SettingsError),
        ("blue=nan", SettingsError),
        ("blue=1.5", SettingsError),
        ("blue=much", SettingsError),
        ("somewhere.json", SettingsError),
    ],
)
def test_a_prior_that_says_nothing_is_refused(host, prior, error) -> None:
    with pytest.raises(error):
        host.recompose(prior=prior)
    assert Generations(host.home).numbers() == (1,)
