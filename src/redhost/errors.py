"""Errors that callers handle differently; all derive from `redhost.RedhostError`."""

from .registry.errors import (
    CompositionError,
    ContractError,
    HarmError,
    IntegrityError,
    LockHeldError,
    PluginError,
    SettingsError,
    StaleGenerationError,
    StoreError,
    SwapInProgressError,
    UnknownNameError,
)

__all__ = [
    "CompositionError",
    "ContractError",
    "HarmError",
    "IntegrityError",
    "LockHeldError",
    "PluginError",
    "SettingsError",
    "StaleGenerationError",
    "StoreError",
    "SwapInProgressError",
    "UnknownNameError",
]
