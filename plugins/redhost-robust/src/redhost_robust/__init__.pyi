from .causal_training import CausalGate, Distilled, distillation_loss, train_causal_gate
from .constant import constant_value, disjoint_value, disjoint_weights, log_sum_exp, solve_constant
from .descent_ascent import (
    MinimaxResult,
    MinimaxSettings,
    minimax,
    mixture_losses,
    move_lambda,
)
from .distill import (
    causal_gate,
    constant_causal_gate,
    distillation_gap,
    responsibilities,
    student_model,
)
from .divergences import entropies, jensen_shannon, kl, linearised_payoff, mix, payoff, worst_kl
from .errors import GameError
from .game import Game, floored
from .game_json import read_game, solve_json
from .gate_distillation import distil_gate
from .gate_networks import NetworkGate, TabularGate
from .gates import envelope, gate_of_model, model_of_gate, normaliser
from .generalisation import gate_gap_bound
from .primal_dual_finite import PrimalDualResult, solve_stochastic
from .probability import Array, probability_rows, probability_vector
from .sequences import Sequences
from .solution import Certificate, ConstantSolution, GateSolution
from .solve import capacity, solve_gate
from .source import FiniteSource, Source
from .stochastic_primal_dual import (
    PrimalDualSettings,
    cross_entropies,
    mixture_step,
    normaliser_estimate,
    primal_dual,
)
from .theorem import conditional_entropy, expert_divergences, theorem3_bound
from .water import water_filling

__all__ = [
    "Array",
    "CausalGate",
    "Certificate",
    "ConstantSolution",
    "Distilled",
    "FiniteSource",
    "Game",
    "GameError",
    "GateSolution",
    "MinimaxResult",
    "MinimaxSettings",
    "NetworkGate",
    "PrimalDualResult",
    "PrimalDualSettings",
    "Sequences",
    "Source",
    "TabularGate",
    "capacity",
    "causal_gate",
    "conditional_entropy",
    "constant_causal_gate",
    "constant_value",
    "cross_entropies",
    "disjoint_value",
    "disjoint_weights",
    "distil_gate",
    "distillation_gap",
    "distillation_loss",
    "entropies",
    "envelope",
    "expert_divergences",
    "floored",
    "gate_gap_bound",
    "gate_of_model",
    "jensen_shannon",
    "kl",
    "linearised_payoff",
    "log_sum_exp",
    "minimax",
    "mix",
    "mixture_losses",
    "mixture_step",
    "model_of_gate",
    "move_lambda",
    "normaliser",
    "normaliser_estimate",
    "payoff",
    "primal_dual",
    "probability_rows",
    "probability_vector",
    "read_game",
    "responsibilities",
    "solve_constant",
    "solve_gate",
    "solve_json",
    "solve_stochastic",
    "student_model",
    "theorem3_bound",
    "train_causal_gate",
    "water_filling",
    "worst_kl",
]
