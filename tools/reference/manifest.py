"""The page on ``expert.json`` and ``backbone.json``."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from redhost.registry.package.manifest import BackboneManifest, ExpertManifest, Reads, Writes
from redhost.registry.package.rules import expected_tensors

from .markdown import joined, table
from .sections import links_to, section
from .shapes import shapes_in

__all__ = ["page"]

LETTERS = {2: "D", 3: "R", 5: "C", 7: "L"}
"""Sizes that cannot be mistaken for each other, and the letters they stand for."""


def page() -> str:
    """Return the page."""
    shapes = list(dict.fromkeys([*shapes_in(ExpertManifest), *shapes_in(BackboneManifest)]))
    shapes.sort(key=lambda shape: shape not in {ExpertManifest, BackboneManifest})
    links = links_to(shapes)
    return joined(
        "Manifests: expert.json and backbone.json",
        "An expert's package holds `expert.json`, a backbone's `backbone.json`. The schema is "
        "closed: a key that is not listed here is a violation. `redhost schema expert` and "
        "`redhost schema backbone` print it as JSON Schema, and `redhost check` checks a package "
        "against it. The codes of the violations show how keys must agree with each other.",
        *(section(shape, links, defaults=True) for shape in shapes),
        "## Tensors",
        "`weights` names a safetensors file with exactly these tensors. D is the backbone's "
        "width, R the expert's rank, C the number of the backbone's labels, L that of its own.",
        table(("form", "writes", "tensors"), _tensors()),
        "A plugin's form has the tensors that its manifest lists under `tensors`; without that "
        "key, its plugin decides.",
    )


def _tensors() -> Iterator[tuple[str, str, str]]:
    for form in ("residual", "linear", "mlp"):
        for space in ("hidden", "logits", "labels"):
            shapes = expected_tensors(_example(form, space), classes=5)
            described = (
                f"`{name}` ({', '.join(LETTERS[n] for n in shape)})"
                for name, shape in shapes.items()
            )
            yield f"`{form}`", f"`{space}`", ", ".join(described)


def _example(form: str, space: str) -> ExpertManifest:
    """Return a manifest of these sizes; parts that do not affect its tensors are left empty."""
    file = {"file": "a", "sha256": "0" * 64}
    manifest = {
        "id": "example",
        "bus_api": ">=1",
        "backbone": {"name": "example", "fingerprint": "0" * 64},
        "form": form,
        "reads": Reads(width=2),
        "writes": Writes(space=space),  # type: ignore[arg-type]
        "rank": 3,
        "activation": "gelu",
        "labels": [str(n) for n in range(7)],
        "domain": "",
        "weights": file,
        "card": {"kind": "none"},
        "canary": {**file, "tolerance": 1.0},
        "training": {"data": "", "seed": 0, "epochs": 0},
        "license": "",
    }
    return msgspec.convert(msgspec.to_builtins(manifest), ExpertManifest)
