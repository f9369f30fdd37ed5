"""ridge and statistics that give k columns a weight."""

from __future__ import annotations

import pytest
import torch

import redhost
from redhost.core.routers import build_router
from redhost.core.routers.domain_statistics import Statistics
from redhost.plugins import ColumnData

COLUMNS = ("a", "b", "c", "d")


def line(n: int) -> ColumnData:
    z = torch.randn(40, 8, generator=torch.Generator().manual_seed(n))
    z[:, n] += 3
    labels = tuple("xy"[m % 2] for m in range(40))
    sums = Statistics.of_rows(z, labels)
    return ColumnData(column=COLUMNS[n], z=z, statistics=sums, labels=labels)


@pytest.mark.parametrize("kind", ["ridge", "statistics"])
@pytest.mark.parametrize("k", [1, 2, 9])
def test_the_k_largest_stay_as_they_are_and_density_does_not_change(kind, k) -> None:
    config, data = redhost.BusConfig(width=8, labels=()), [line(n) for n in range(4)]
    whole, cut = (build_router(name, config, COLUMNS, 0) for name in (kind, f"{kind}:k={k}"))
    assert whole is not None and cut is not None
    whole.solve(data)
    cut.solve(data)
    z = torch.cat([d.z for d in data])
    with torch.inference_mode():
        expected, found = whole(z), cut(z)
        assert torch.equal(whole.log_density(z), cut.log_density(z))  # type: ignore[arg-type]
    top = found > -torch.inf
    assert top.sum(-1).tolist() == [min(k, 4)] * len(z)
    assert torch.equal(found[top], expected[top])
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    lowest = torch.where(top, expected, torch.inf).amin(-1)
    assert (torch.where(top, -torch.inf, expected).amax(-1) <= lowest).all()
    assert (whole.chosen, cut.chosen) == (None, min(k, 4))
    assert float((found.argmax(-1) == torch.arange(4).repeat_interleave(40)).double().mean()) > 0.8
