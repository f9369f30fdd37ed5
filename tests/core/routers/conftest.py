"""What the tests of single routers have in common."""

# The first backbone imports this, for seconds: once, before `make mutate` forks for a mutant.
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
