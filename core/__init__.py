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

Each room knows only those above it in this list; an import contract in pyproject.toml holds it.
"""
