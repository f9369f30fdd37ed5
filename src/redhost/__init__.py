"""redhost: `pip install` an expert; only the router is retrained, and nothing else moves.

What people use is here, and loaded when first used: ``import redhost`` does not import torch. The
rest of the public API has a module each: `redhost.errors`, `redhost.authoring` (from data to a
package), `redhost.plugins` (what a plugin is made with), `redhost.jobs`, `redhost.testing`.
The names and their types stand in ``__init__.pyi``.
"""

import logging

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
"""The version of redhost."""

logging.getLogger("redhost").addHandler(logging.NullHandler())
