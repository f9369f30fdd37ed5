"""A plugin's router that brings a signal of its own in one file; one that is a plain module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import redhost
from redhost.registry.environment import trust

TEXTS = ["red 1 a", "blue 7 b", "nothing at all"]

NORMED = '''
"""logit_k = a_k · ‖Δ_k(z)‖ + b_k: trained by gradient, over a signal that this file registers."""

import torch

import redhost


@redhost.plugins.router_signal("delta_norm")
def delta_norm(signals, ensemble):
    """Return ‖Δ_k(z)‖ (B, K), zero for the backbone's column."""
    norms = signals.z.new_zeros(len(signals.z), ensemble.columns)
    for output in ensemble.all_outputs(signals.features):
        norms[:, output.column] = output.delta.norm(dim=-1)
    return norms


class NormedRouter(redhost.Router):
    kind = "normed"
    reads = frozenset({"delta_norm"})

    def __init__(self, *, width, columns, seed=0):
        super().__init__(width=width, columns=columns, seed=seed)
        self.weight = torch.nn.Parameter(torch.zeros(len(columns)))
        self.bias = torch.nn.Parameter(torch.zeros(len(columns)))

    def forward(self, z, signals=None):
        return signals["delta_norm"] * self.weight + self.bias

    def column_parameters(self):
        return self.weight, self.bias


@redhost.hookimpl
def redhost_register_routers(register):
    register("normed", redhost.plugins.router_factory(NormedRouter))
'''

PLAIN = """
import redhost, torch

def dense(bus, columns):
    return torch.nn.Linear(bus.router_width, len(columns))

@redhost.hookimpl
def redhost_register_routers(register):
    register("dense", dense)
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))


@pytest.fixture
def plugin(installed):
    """Install and trust a plugin of one file."""

    def install(dist: str, code: str) -> None:
        installed.install_code(dist, {"__init__.py": code}, {"redhost.plugins": f"{dist} = {dist}"})
        trust.trust(dist)

    return install


def open_host(tmp_path: Path) -> redhost.Host:
    return redhost.Host.open(tmp_path / "home", backbone="toy")


def test_a_router_reads_a_signal_that_its_own_file_brings(plugin, tmp_path) -> None:
    plugin("normed", NORMED)
    receipt = open_host(tmp_path).recompose(router="normed", accept=True)
    assert receipt.router.kind == "normed" and receipt.router.moved == receipt.router.columns
    host = open_host(tmp_path)  # from stored bytes
    answers, bus = host.predict(TEXTS), host.composed.bus
    assert bus.router.weight.abs().max() > 0.01  # type: ignore[union-attr]  # it was trained
    z = bus.norm(host.composed.backbone.encode(TEXTS))
    norms = [bus.delta(z, k).norm(dim=-1) for k in range(len(bus.ids))]
    norms.append(torch.zeros(len(TEXTS)))  # the backbone's column
    router: Any = bus.router
    alpha = torch.softmax(torch.stack(norms, -1) * router.weight + router.bias, -1)
    given = torch.tensor([list(answer.weights.values()) for answer in answers])
    torch.testing.assert_close(given, alpha, atol=1e-5, rtol=1e-4)


def test_it_is_trained_by_column_too(plugin, tmp_path) -> None:
    plugin("normed", NORMED)
    host = open_host(tmp_path)
    host.recompose(router="normed", accept=True)
    again = host.recompose(router="normed", level="row", accept=True)
    assert again.router.moved == ()


def test_a_plain_module_is_trained_and_keeps_its_tensors_names(plugin, tmp_path) -> None:
    plugin("dense", PLAIN)
    host = open_host(tmp_path)
    receipt = host.recompose(router="dense", accept=True)
    bus = host.composed.bus
    tensors = safetensors.torch.save(bus.router.state_dict())
    assert set(safetensors.torch.load(tensors)) == {"weight", "bias"}
    assert [a.label for a in open_host(tmp_path).predict(TEXTS)] == [
        a.label for a in host.predict(TEXTS)
    ]
    with pytest.raises(redhost.UsageError, match=r"single columns.*Use --level full"):
        host.recompose(router="dense", level="row", accept=True)
    assert receipt.router.kind == "dense"
