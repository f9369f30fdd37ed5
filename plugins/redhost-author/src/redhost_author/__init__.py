"""From rows to packages: train experts, make backbones, write projects of experts and plugins.

`training` trains experts and packs them, `project` writes an expert's project, `backbone` makes a
backbone of a model, `plugin_project` writes a plugin's project, `workflow` the one that
publishes an expert, and `signing` makes keys and signatures. The names here are loaded lazily;
`redhost_author.testing` has projects for tests.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
