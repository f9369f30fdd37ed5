"""redhost: `pip install` an expert; only the router is retrained, and nothing else changes.

The most used names are here and are loaded lazily: ``import redhost`` does not import torch. The
rest of the public API has a module each: `redhost.errors`, `redhost.plugins` (base classes and
helpers for plugins) and `redhost.testing`. The names and their types are in ``__init__.pyi``.
"""

import os
import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # Only for `python -m redhost`: the current folder is first on the path, and any module in it
    # could be imported by mistake.
    _run = sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0]
    if (_run, sys.path[0]) == (__name__, os.getcwd()):  # noqa: PTH109  (pathlib is not imported)
        del sys.path[0]

import logging

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
"""The version of redhost."""

logging.getLogger("redhost").addHandler(logging.NullHandler())
