"""Who chooses an adapter for a text: the product's router, centroids, chance, or who knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

import redhost
from red_lab.adapters.authors import Authors
from redhost.core.bus.bus import BACKBONE
from redhost.core.model.route import Chooser
from redhost.core.routers import build_router
from redhost.core.routers.cards import background_data, column_data, read_card
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_expert

__all__ = ["chosen_by", "routers_of"]


def chosen_by(
    authors: Authors, routers: Mapping[str, Chooser], rows: Sequence[redhost.Row]
) -> dict[str, list[str]]:
    """Return the adapter that each way to choose names for each row.

    Args:
        authors: Who shows a card of at most 50 texts each.
        routers: Of the product, by their kinds.
        rows: The rows.
    """
    texts = [r.text for r in rows]
    names = list(authors.packages)
    random = torch.Generator().manual_seed(0)
    picked = torch.randint(len(names), (len(rows),), generator=random).tolist()
    made = {
        "oracle": [str(r.domain) for r in rows],
        "nearest centroid of embeddings": _nearest(authors, names, texts),
        "an adapter at random": [names[k] for k in picked],
    }
    for name, chooser in routers.items():
        weights = chooser.weights(texts)
        own = [chooser.columns.index(n) for n in names]
        made[name] = [names[k] for k in weights[:, own].argmax(-1).tolist()]
    return made


def routers_of(authors: Authors, kinds: Sequence[str]) -> dict[str, Chooser]:
    """Return the product's routers, solved as a host solves them: from cards and background.

    A host that composes also runs every adapter on every card, for its gates; not here.
    """
    backbone, columns = authors.context.backbone, (*sorted(authors.packages), BACKBONE)
    norm = redhost.plugins.LayerNorm(width=backbone.width, eps=backbone.eps)
    cards = {}
    for name, package in authors.packages.items():
        files = read_expert(from_folder(package)).unwrap(name)
        cards[name] = read_card(files.manifest, files.files, task=backbone.task)

    def encode_z(texts: Sequence[str]) -> Tensor:
        z: Tensor = norm(authors.context.encode(texts))
        return z

    data = [column_data(cards[name], encode_z=encode_z, seed=0) for name in columns[:-1]]
    others = background_data(
        authors.context.background, column=BACKBONE, composed=columns[:-1], encode_z=encode_z
    )
    assert others is not None  # noqa: S101  (there is a background card)
    made = {}
    for kind in kinds:
        router = build_router(kind, backbone.bus_config(), columns, 0)
        assert router is not None  # noqa: S101  (all kinds are built in)
        router.solve([*data, others])
        made[kind] = Chooser(backbone=backbone, norm=norm, router=router, columns=columns)
    return made


def _nearest(authors: Authors, names: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return the task whose card's mean embedding has the largest cosine; last states alone."""
    layers = authors.context.backbone.trunk.features
    width = authors.context.backbone.width
    if layers is not None:
        width = (width - layers.tokens) // len(layers.layers)
    tokens = 0 if layers is None else layers.tokens

    def embed(some: Sequence[str]) -> Tensor:
        h = authors.context.encode(some)
        last = h[:, h.shape[1] - tokens - width : h.shape[1] - tokens]
        return torch.nn.functional.normalize(last, dim=-1)

    cards = [[r.text for r in authors.parts[n].fit] for n in names]
    centroids = torch.stack([embed(card).mean(0) for card in cards])
    best = (embed(texts) @ torch.nn.functional.normalize(centroids, dim=-1).T).argmax(-1)
    return [names[k] for k in best.tolist()]
