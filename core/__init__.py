"""What computes. At the door the bus and its equations; around it, a room for each thing done.

- ``bus``, ``ensemble``, ``stack``, ``said``, ``experts``, ``evidence``, ``layout``, ``tasks``: h to
  an answer; ``routers/`` the kinds of router, one a file.
- ``backbones/``: a text to h. ``generate/``: rows that are tokens.
- ``learning/``: what a router learns from, and its training.
- ``extending/``: the hook spec, trusted plugins, parts made from checked bytes.
- ``answering/``: a generation in memory.
- ``measuring/``: what a composition is worth.
- ``composing/``: from what is installed to a published generation.
- ``authoring/``: from an author's rows to a package.
- ``engines/``: jobs as data, and who does them.
- ``host``, ``live``: all of it in one object; ``testing``: the certify kit.
- ``mechanisms/``, ``robust/``: libraries of their own, public as `redhost.mechanisms` and
  `redhost.robust`.

From ``learning/`` to ``live`` each knows only those above it, but for two imports that the contract
in pyproject.toml names; the bus and its equations know none of them.
"""
