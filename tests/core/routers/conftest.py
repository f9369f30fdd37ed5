"""What the tests of single routers have in common."""

# The first optimiser imports the one, the first backbone the other, each for seconds: once, before
# `make mutate` forks for a mutant.
import torch._dynamo  # noqa: F401
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
