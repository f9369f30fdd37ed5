"""Robust gates: one model for the worst mixture of the experts' domains, with a certificate.

Finite games are solved exactly (`solve_gate`, `solve_constant`, `capacity`), larger ones on samples
(`primal_dual`). The game and the legend for shapes are in `game`. All values are in nats.

Limits of the theory: exact experts gain nothing from an input-dependent gate, and no normalised
model, modular or not, has a worst-case KL below the capacity C of the domains.

Source: seed 002 (arXiv 2602.17554) with the repairs of docs/departures.md.

`routers` has the kinds that the plugin brings to hosts, `hooks` registers them, `descent_ascent` is
the game that trains two of them. The names here are loaded lazily: a host that registers the kinds
imports nothing else.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
