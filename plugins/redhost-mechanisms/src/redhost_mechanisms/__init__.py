"""Module composition: 24 small mechanisms of seed 003, each with a stated contract.

Legend for shapes in every file: D width (D_in, D_out where they differ), E experts or parts, k
chosen experts, N rows, R and W heads, H width of a head; ``(..., D)`` stands for any leading
dimensions, none and empty ones included.

Conventions: options are keyword-only, and parts are passed in as built modules. Layers that a
mechanism builds itself, and all noise, draw from a `torch.Generator`. `forward` stores nothing. A
mechanism has `input_width` and `output_width`, so it can be a part of another one.
"""

from .adaptive_graft import AdaptiveGraft, ProjectionMode
from .additive import Additive
from .balance import load_balancing_loss
from .blend import Blend, MultiBlend
from .competitive import WinnerTakesAll
from .cooperative import AttentiveEnsemble
from .dispatch import dispatch
from .encapsulated import Encapsulated
from .ensemble import Combiner, IndependentEnsemble
from .gated import Gated, open_gate
from .glu import GLU
from .grafted_module import GraftedModule
from .hard_routing import HardRouting
from .health import (
    assignment_flip_rate,
    dead_experts,
    load_imbalance,
    pairwise_output_distance,
    usage,
    usage_entropy,
)
from .initialise import InitMode, init_for_grafting
from .input_graft import InputGraft
from .linear import seeded_linear, zero_linear
from .mixture import SparseMixture
from .normalised_graft import NormalisedGraft
from .output_graft import GraftMode, OutputGraft
from .residual_stream import ResidualStream
from .sequence import ComposableSequence
from .slot import Slot
from .straight_through import straight_through
from .stream_heads import StreamHeads
from .top_k import Routing, noisy_logits, noisy_top_k, top_k
from .widths import Widths, check_width, widths_of

__all__ = [
    "GLU",
    "AdaptiveGraft",
    "Additive",
    "AttentiveEnsemble",
    "Blend",
    "Combiner",
    "ComposableSequence",
    "Encapsulated",
    "Gated",
    "GraftMode",
    "GraftedModule",
    "HardRouting",
    "IndependentEnsemble",
    "InitMode",
    "InputGraft",
    "MultiBlend",
    "NormalisedGraft",
    "OutputGraft",
    "ProjectionMode",
    "ResidualStream",
    "Routing",
    "Slot",
    "SparseMixture",
    "StreamHeads",
    "Widths",
    "WinnerTakesAll",
    "assignment_flip_rate",
    "check_width",
    "dead_experts",
    "dispatch",
    "init_for_grafting",
    "load_balancing_loss",
    "load_imbalance",
    "noisy_logits",
    "noisy_top_k",
    "open_gate",
    "pairwise_output_distance",
    "seeded_linear",
    "straight_through",
    "top_k",
    "usage",
    "usage_entropy",
    "widths_of",
    "zero_linear",
]
