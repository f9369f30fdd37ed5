"""What the tests of single routers have in common."""

# The first optimiser imports this, for seconds: once, before `make mutate` forks for a mutant.
import torch._dynamo  # noqa: F401
