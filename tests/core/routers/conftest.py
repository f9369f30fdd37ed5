"""What the tests of single routers have in common."""

# The first backbone imports this, for seconds: once, before `make mutate` forks for a mutant.
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401
