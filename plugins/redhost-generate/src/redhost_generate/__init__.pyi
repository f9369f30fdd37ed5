from .decode import Continuation, Token, generate, read_batch
from .documents import read_documents, split_documents
from .grammar import Grammar, JsonGrammar
from .pipeline import TextGeneration
from .sampling import Sampling
from .tokens import byte_counts, context_layout, contexts

__all__ = [
    "Continuation",
    "Grammar",
    "JsonGrammar",
    "Sampling",
    "TextGeneration",
    "Token",
    "byte_counts",
    "context_layout",
    "contexts",
    "generate",
    "read_batch",
    "read_documents",
    "split_documents",
]
