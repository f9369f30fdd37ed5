"""What computes, in rooms; each imports only those below it.

- ``host``, ``live``, ``session``: all of it in one object; answers while generations change.
- ``testing/``: the certify kit, an empty environment, fault injection.
- ``jobs/``: jobs as data, worker pools, engines.
- ``composition/``: from what is installed to a published generation.
- ``evaluation/``: what a composition is worth.
- ``training/``: experts, backbones and routers, from rows to packages.
- ``model/``: a composed model in memory: built, loaded, answering.
- ``plugins/``: the hook spec and trusted plugins.
- ``backbones/``: text to h, and what acts inside the encoder.
- ``routers/``: z to α, one kind a file.
- ``bus/``: the equations, h to an answer.

`redhost_mechanisms` and `redhost_robust` are distributions of their own. Contracts in
pyproject.toml hold the layers.
"""
