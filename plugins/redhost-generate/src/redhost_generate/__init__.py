"""Text generation for redhost: rows of tokens, decoding, causal routers.

`hooks` registers the task `generation` and the routers; `tokens` is the task's unit,
`vocabulary_head` its head, `recipe` how its experts are made. The names here are loaded lazily.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
