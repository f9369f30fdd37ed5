"""The centroid router: squared distances to the means, in units of the spread at home."""

from __future__ import annotations

import torch

import redhost
from redhost.core.routers.centroid import CentroidRouter
from redhost.core.routers.domain_statistics import Statistics

D, NAMES = 3, ("a", "b", "c")


def domains(*, spread: float = 1.0) -> list[redhost.plugins.ColumnData]:
    """Return clouds of different sizes around the corners of a triangle."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for k, (name, n) in enumerate(zip(NAMES, (5, 20, 60), strict=True)):
        z = 2 * torch.eye(D)[k] + spread * torch.randn(n, D, generator=generator)
        labels = [str(i % 2) for i in range(n)]
        sums = Statistics.of_rows(z, labels)
        made.append(redhost.plugins.ColumnData(column=name, z=z, statistics=sums))
    return made


def fit(data: list[redhost.plugins.ColumnData]) -> CentroidRouter:
    router = CentroidRouter(width=D, columns=tuple(d.column for d in data))
    router.solve(data)
    return router.requires_grad_(False)


def test_weights_fall_with_the_squared_distance_over_twice_the_spread() -> None:
    data, z = domains(), torch.randn(9, D, generator=torch.Generator().manual_seed(1))
    means = torch.stack([d.z.mean(0) for d in data])
    home = torch.cat([d.z - m for d, m in zip(data, means, strict=True)])
    expected = -torch.cdist(z, means).square() / (2 * home.square().mean())
    torch.testing.assert_close(
        torch.log_softmax(fit(data)(z), -1), torch.log_softmax(expected, -1), atol=1e-4, rtol=1e-4
    )


def test_rows_that_are_all_alike_leave_finite_logits() -> None:
    data = domains(spread=0.0)
    logits = fit(data)(torch.cat([d.z[:1] for d in data]))
    assert logits.isfinite().all() and logits.argmax(-1).tolist() == [0, 1, 2]


def test_a_new_column_moves_its_mean_alone() -> None:
    data = domains()
    parent = fit([data[0], data[2]])
    child = CentroidRouter(width=D, columns=NAMES)
    child.copy_columns(parent, keep={"a", "c"})
    child.solve(data, only={"b"})
    assert torch.equal(child.centroid[[0, 2]], parent.centroid)
    torch.testing.assert_close(child.centroid[1], data[1].z.mean(0))
    assert torch.equal(child.spread, parent.spread)
