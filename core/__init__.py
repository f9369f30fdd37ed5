"""Everything that computes, in sub-packages; each imports only those below it.

- ``host``, ``live``, ``session``: the composed parts in one object; serving during swaps.
- ``composition/``: from the installed packages to a published generation.
- ``evaluation/``: the quality of a composition.
- ``training/``: rows with answers, and routers; experts are trained in `redhost_author`.
- ``model/``: a composed model in memory: built, loaded, answering.
- ``plugins/``: the hook spec and trusted plugins.
- ``backbones/``: text to h, and modules that act inside the encoder.
- ``routers/``: z to α, one kind per file.
- ``bus/``: the equations, h to an answer.

`redhost_mechanisms` and `redhost_robust` are separate distributions. Import contracts in
pyproject.toml enforce the layers.
"""
