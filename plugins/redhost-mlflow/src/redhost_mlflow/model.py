"""The model that MLflow loads: its folder names this module, and nothing is unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.exceptions import MlflowException

import redhost
from redhost import frames

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TEXT", "GenerationModel"]

TEXT = "text"
"""The column with the texts."""


class GenerationModel:
    """A generation that answers tables.

    Args:
        host: The host whose current generation answers.
    """

    def __init__(self, host: redhost.Host) -> None:
        self.host = host

    def predict(self, model_input: pd.DataFrame) -> pd.DataFrame:
        """Return the answers to a table's texts, a row each, with the columns of `redhost.frames`.

        Args:
            model_input: A table with a column `text`.

        Raises:
            MlflowException: If a row has no text: MLflow's server answers 400 and names the row.
        """
        try:
            answered = frames.answer(self.host, model_input[[TEXT]], text=TEXT)
        except redhost.UsageError as e:
            raise MlflowException.invalid_parameter_value(str(e)) from e
        return answered.drop(columns=TEXT)


def _load_pyfunc(data_path: str) -> GenerationModel:
    """Return the model in a folder; MLflow calls this by name.

    Args:
        data_path: A home that holds one generation.
    """
    host = redhost.Host.open(Path(data_path))
    host.composed  # noqa: B018  (every byte is read and checked now, not at the first answer)
    return GenerationModel(host)
