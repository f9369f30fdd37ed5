"""`redhost lab subspaces`: how many dimensions an expert's Δ uses, and how experts overlap.

Seed 001, 4.4.4 C: each Δ_i uses only the dimensions that matter for its range. This is interpreted
as follows: on its own questions Δ_i lies in few directions; answers from these directions alone are
as accurate; and they are the directions in which the classifier separates the expert's own labels,
not those of the other experts.

    Δ_i (N, D) on the expert's own questions, ΔᵀΔ = Σ λ_k v_k v_kᵀ
    participation ratio  (Σ λ)² / Σ λ²
    overlap of i and j   ‖P_i P_j‖²_F / k, P_i on the k first v of i; k / D by chance
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from red_lab.metrics import write_results
from red_lab.options import out_option

if TYPE_CHECKING:
    from torch import Tensor

    import redhost

__all__ = ["directions", "overlap", "page", "participation", "subspaces"]

NAMES = tuple(f"range{n}" for n in range(1, 6))
TITLES = {
    "kept": "its own first k directions",
    "left out": "all except its own first k",
    "others": "another expert's first k",
    "random": "k random directions",
}
"""What Δ is projected on, with the title in the table."""

MOST = 0.95
"""Share of the energy whose directions are counted."""

SIZES = (1, 2, 4, 8, 16, 32)
"""Numbers of directions that Δ is projected on."""

SHARED = 8
"""k of the overlaps."""

DRAWS = 5
"""Number of random subspaces that the row of random directions averages over."""


@click.command()
@out_option("subspaces")
def subspaces(*, out: Path) -> None:
    """Measure the dimensions that the shipped experts use on the tiny backbone."""
    click.echo(write_results(measure(), out, page=page))


def directions(delta: Tensor) -> tuple[Tensor, Tensor]:
    """Return decreasing λ ``(D,)`` and v ``(D, D)``, as columns, of ΔᵀΔ for Δ ``(N, D)``."""
    import torch

    values, vectors = torch.linalg.eigh(delta.double().T @ delta.double())
    return values.flip(0).clamp_min(0), vectors.flip(1)


def participation(values: Tensor) -> float:
    """Return (Σ λ)² / Σ λ²: how many directions share the energy, 1 to D."""
    return float(values.sum() ** 2 / values.square().sum())


def overlap(one: Tensor, other: Tensor) -> float:
    """Return ‖P Q‖²_F / k of two subspaces of k orthonormal columns each, 0 to 1."""
    return float((one.T @ other).square().sum() / one.shape[1])


def measure() -> dict[str, Any]:
    """Measure every expert on its own held-out questions."""
    import torch

    from redhost.core.composition.recompose import compose

    torch.set_num_threads(1)
    folders = [_folder(f"red_expert_{n}") for n in NAMES]
    composed = compose(_folder("red_backbone_tiny"), folders).composed
    questions = {n: _questions_of(composed, n) for n in NAMES}
    vectors = {n: directions(a.delta)[1] for n, a in questions.items()}
    spans = {n: a.span() for n, a in questions.items()}
    experts = dict[str, dict[str, Any]]()
    for n, a in questions.items():
        others = [v for other, v in vectors.items() if other != n]
        experts[n] = {
            **a.sizes(),
            **a.projected(vectors[n], others),
            "own labels": _energy(a.delta, spans[n]),
            "other labels": _mean(_energy(a.delta, spans[o]) for o in NAMES if o != n),
            "by chance": spans[n].shape[1] / composed.backbone.width,
        }
    shared = {n: v[:, :SHARED] for n, v in vectors.items()}
    pairs = {a: {b: overlap(shared[a], shared[b]) for b in NAMES} for a in NAMES}
    figures = ("participation", "own labels", "other labels", "by chance", "none", "all")
    return {
        "schema": "red-lab.subspaces/1",
        "width": composed.backbone.width,
        "shared": SHARED,
        "shared by chance": SHARED / composed.backbone.width,
        "experts": experts,
        "overlap": pairs,
        "mean": {
            t: {str(k): _mean(e[t][str(k)] for e in experts.values()) for k in SIZES}
            for t in TITLES
        },
        "means": {
            **{f: _mean(e[f] for e in experts.values()) for f in figures},
            "overlap": _mean(pairs[a][b] for a in NAMES for b in NAMES if a != b),
        },
    }


def _questions_of(composed: redhost.ComposedModel, name: str) -> _Questions:
    """Return an expert's own questions and its outputs on them."""
    import torch

    bus, backbone = composed.bus, composed.backbone
    rows = [r for r in composed.evaluation if r.domain == name]
    h = backbone.encode([r.text for r in rows])
    with torch.inference_mode():
        delta = bus.experts[bus.ids.index(name)](bus.norm(h))
    assert backbone.classifier is not None  # noqa: S101  (the tiny backbone has one)
    target = torch.tensor([backbone.labels.index(r.label) for r in rows])
    return _Questions(h.double(), delta.double(), target, backbone.classifier.double())


class _Questions(NamedTuple):
    """An expert's own: h and Δ ``(N, D)``, the answers ``(N,)``, and W_c ``(C, D)``."""

    h: Tensor
    delta: Tensor
    target: Tensor
    classifier: Tensor

    def right(self, moved: Tensor) -> float:
        """Return the share of questions that h with a part of Δ answers correctly."""
        answers = ((self.h + moved) @ self.classifier.T).argmax(-1)
        return float((answers == self.target).double().mean())

    def sizes(self) -> dict[str, float]:
        """Return the number of directions of Δ, and the accuracy with and without it."""
        values, _ = directions(self.delta)
        return {
            "rows": len(self.delta),
            "participation": participation(values),
            "most": int((values.cumsum(0) / values.sum() < MOST).sum()) + 1,
            "none": self.right(0 * self.delta),
            "all": self.right(self.delta),
        }

    def projected(self, own: Tensor, others: Sequence[Tensor]) -> dict[str, dict[str, float]]:
        """Return the accuracy with Δ projected on k columns ``(D, D)``, by kind of columns."""
        bases = {"kept": [own], "others": others, "random": _random(len(own))}
        found = {
            title: {
                str(k): _mean(self.right(_onto(self.delta, v[:, :k])) for v in given) for k in SIZES
            }
            for title, given in bases.items()
        }
        left = {str(k): self.right(self.delta - _onto(self.delta, own[:, :k])) for k in SIZES}
        return {**found, "left out": left}

    def span(self) -> Tensor:
        """Return an orthonormal basis ``(D, k)`` of the differences between its labels' rows."""
        import torch

        rows = self.classifier[sorted(set(self.target.tolist()))]
        basis: Tensor = torch.linalg.svd(rows - rows.mean(0), full_matrices=False).Vh
        return basis[: len(rows) - 1].T


def _folder(module: str) -> Path:
    import redhost

    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise redhost.MissingError(f"{module} is not here", hint="Run 'make demo' first.")
    return Path(spec.origin).parent


def _mean(values: Any) -> float:
    several = [float(x) for x in values]
    return sum(several) / len(several)


def _onto(delta: Tensor, basis: Tensor) -> Tensor:
    """Return Δ projected on orthonormal columns."""
    return delta @ basis @ basis.T


def _random(width: int) -> Sequence[Tensor]:
    """Return orthonormal bases ``(D, D)`` whose first columns are random directions."""
    import torch

    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(DRAWS, width, width, generator=generator, dtype=torch.float64)
    return list(torch.linalg.qr(drawn).Q)


def _energy(delta: Tensor, basis: Tensor) -> float:
    """Return the share of Σ ‖Δ‖² in the span of orthonormal columns."""
    return float((delta @ basis).square().sum() / delta.square().sum())


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.subspaces/1``."""
    experts, mean, width = metrics["experts"], metrics["means"], metrics["width"]
    names = list(experts)
    lines = [
        "# Which dimensions an expert uses",
        "",
        "Written by `redhost lab subspaces` from `metrics.json`; do not edit.",
        "",
        f"Each of the five shipped experts on the tiny backbone (D = {width}) is evaluated on its "
        "own held-out questions. The participation ratio of ΔᵀΔ is the effective number of "
        "directions; the next column counts the directions with 95 % of the energy ‖Δ‖². The last "
        "three columns give the share of the energy in the span of the classifier's rows for the "
        "expert's own labels, in that for another expert's labels, and in a random subspace of the "
        "same dimension as that of its own labels.",
        "",
        "| expert | questions | participation ratio | directions with 95 % | energy: own labels | "
        "another expert's labels | by chance |",
        "|---|---|---|---|---|---|---|",
    ]
    for n in names:
        e = experts[n]
        lines.append(
            f"| {n} | {e['rows']} | {e['participation']:.1f} | {e['most']} | "
            f"{e['own labels']:.3f} | {e['other labels']:.3f} | {e['by chance']:.3f} |"
        )
    lines += [
        "",
        "Accuracy of an expert on its own questions with Δ projected on k directions, the mean "
        f"over experts. Without Δ it is {mean['none']:.3f}, with all of Δ {mean['all']:.3f}:",
        "",
        f"| Δ projected on | {' | '.join(f'k = {k}' for k in SIZES)} |",
        "|---" * (len(SIZES) + 1) + "|",
    ]
    for title, shown in TITLES.items():
        lines.append(_line(shown, (metrics["mean"][title][str(k)] for k in SIZES)))
    k, chance = metrics["shared"], metrics["shared by chance"]
    lines += [
        "",
        f"Overlap of the first {k} directions of two experts: the mean is {mean['overlap']:.3f}; "
        f"{chance:.3f} is expected by chance:",
        "",
        f"| | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
        *(_line(a, (metrics["overlap"][a][b] for b in names)) for a in names),
        "",
    ]
    return "\n".join(lines)


def _line(title: str, values: Iterable[float]) -> str:
    return f"| {title} | {' | '.join(f'{x:.3f}' for x in values)} |"
