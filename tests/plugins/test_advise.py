"""`redhost advise`: figures that are known, words that follow from them, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from redhost_author.testing import backbone_project, expert_project
from redhost_robust import Game, capacity, jensen_shannon, theorem3_bound
from redhost_robust.advise import (
    SENTENCES,
    Advice,
    advise,
    capacity_of,
    information,
    merging_costs,
    weighed,
)
from redhost_robust.command import advise as command
from torch import Tensor

import redhost
from redhost.core.composition.recompose import compose
from redhost.testing import Environment

WORLDS = {
    "binary symmetric": [[9, 1], [1, 9]],
    "Z": [[10, 0], [5, 5]],
    "uneven": [[7, 2, 1], [1, 8, 1], [3, 3, 4]],
    "apart": [[10, 0], [0, 10]],
    "alike": [[5, 5], [5, 5]],
}
"""How many of ten rows of each domain are which symbol."""


def rows_of(counts: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return log r ``(N, K)``, the owner and the symbol of each row, in exact proportions."""
    shares = torch.tensor(counts, dtype=torch.float64) / 10
    pairs = [(k, x) for k, own in enumerate(counts) for x, n in enumerate(own) for _ in range(n)]
    owner, symbol = (torch.tensor(column) for column in zip(*pairs, strict=True))
    ratios = shares / shares.mean(0)
    return ratios.clamp_min(1e-300).log().T[symbol], owner, symbol


@pytest.mark.parametrize("counts", WORLDS.values(), ids=WORLDS)
def test_divergence_and_capacity_are_those_of_the_finite_game(counts) -> None:
    log_ratio, owner, _ = rows_of(counts)
    domains = np.array(counts) / 10
    alike = torch.full((len(counts),), 1 / len(counts), dtype=torch.float64)
    found = float(alike @ information(log_ratio, owner, alike))
    assert found == pytest.approx(jensen_shannon(alike.numpy(), domains), abs=1e-9)
    largest, lam = capacity_of(log_ratio, owner)
    assert largest == pytest.approx(capacity(domains).lower, abs=1e-4)
    assert float(lam.sum()) == pytest.approx(1) and float(lam.min()) > 0


def test_the_z_channel_has_its_known_capacity() -> None:
    largest, lam = capacity_of(*rows_of(WORLDS["Z"])[:2])
    assert largest == pytest.approx(math.log(5 / 4), abs=1e-5)
    assert lam.tolist() == pytest.approx([0.6, 0.4], abs=1e-2)


def test_merging_costs_where_domains_share_texts_and_disagree() -> None:
    shared, owner, _ = rows_of(WORLDS["alike"])
    apart = rows_of(WORLDS["apart"])[0]
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).clamp_min(1e-12)
    disagree = sure.expand(len(owner), 2, 2)
    assert merging_costs(shared, owner, disagree).tolist() == pytest.approx([math.log(2)] * 20)
    assert float(merging_costs(apart, owner, disagree).abs().max()) < 1e-9
    agree = sure[:1].expand(len(owner), 2, 2)
    assert float(merging_costs(shared, owner, agree).abs().max()) < 1e-9


@pytest.mark.parametrize("name", ["uneven", "binary symmetric"])
def test_the_bound_is_theorem_3s_of_texts_and_answers_together(name: str) -> None:
    """Every symbol has one right label; expert k gives it q_k, and the rest to a wrong one."""
    counts = WORLDS[name]
    log_ratio, owner, symbol = rows_of(counts)
    shares = np.array(counts) / 10
    q = np.linspace(0.9, 0.6, len(counts))
    domains = np.concatenate([shares, np.zeros_like(shares)], axis=1)
    experts = np.concatenate([shares * q[:, None], shares * (1 - q)[:, None]], axis=1)
    right = torch.tensor(q).log().expand(len(symbol), -1)
    found = weighed(
        [f"d{k}" for k in range(len(q))], owner, log_ratio, torch.zeros(len(symbol)), right
    )
    expected = theorem3_bound(
        Game(domains=domains, experts=experts),
        lambda_star=np.array(list(found.hardest.values())),
        mixture=np.full(len(q), 1 / len(q)),
    )
    assert found.bound == pytest.approx(expected, abs=1e-9)


def made(cost: list[float]) -> Advice:
    log_ratio, owner, _ = rows_of(WORLDS["alike"])
    costs = torch.tensor(cost, dtype=torch.float64)[owner]
    return weighed(["a", "b"], owner, log_ratio, costs, torch.zeros(len(owner), 2).double())


@pytest.mark.parametrize(
    ("cost", "choice"),
    [
        ([0.0, 0.01], "either"),
        ([0.0, 0.011], "several"),
        ([0.1, 0.0], "several"),
        ([0.2, 0.0], "several, and named"),
    ],
)
def test_the_worst_domain_decides(cost: list[float], choice: str) -> None:
    found = made(cost)
    assert found.choice == choice and found.sentence == dict(SENTENCES)[choice]  # type: ignore[call-overload]
    assert found.costs == pytest.approx(dict(zip("ab", cost, strict=True)))
    assert found.rows == {"a": 10, "b": 10} and found.most == math.log(2)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("projects")
    backbone = backbone_project(folder / "red-backbone-tiny-random")
    experts = [expert_project(folder / f"red-expert-{n}", n, backbone) for n in ("one", "two")]
    return [backbone, *experts]


def test_the_command_says_it_in_words_and_figures(
    environment: Environment, projects: list[Path], tmp_path: Path
) -> None:
    for project in projects:
        environment.install(project)
    home = ["--home", str(tmp_path / "home")]
    with redhost.Host.open(tmp_path / "home", backbone="tiny-random") as host:
        host.recompose()
    done = CliRunner().invoke(command, [*home, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["rows"].keys() == {"one", "two"} and found["most"] == math.log(2)
    assert 0 < found["divergence"] <= found["capacity"] + 1e-6 <= found["most"] + 1e-6
    assert min(found["costs"].values()) >= -1e-9
    printed = CliRunner().invoke(command, home, catch_exceptions=False).stdout
    assert printed.startswith(f"{found['choice']}: {found['sentence']}.\n")
    assert (
        f"{found['divergence']:.3f}  of 0.693" in printed and f"{found['capacity']:.3f}" in printed
    )
    assert f"from {sum(found['rows'].values())} gate rows of 2 domains" in printed


def test_one_domain_is_refused(projects: list[Path]) -> None:
    folders = [next((p / "src").iterdir()) for p in projects]
    composed = compose(folders[0], folders[1:2]).composed
    with pytest.raises(redhost.UsageError, match="expected two experts whose cards have gate rows"):
        advise(composed, encode=composed.backbone.encode, plugins=redhost.plugins.Plugins())
