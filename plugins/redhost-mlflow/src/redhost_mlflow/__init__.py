"""A generation as a model of MLflow: ``redhost mlflow export FOLDER``."""
