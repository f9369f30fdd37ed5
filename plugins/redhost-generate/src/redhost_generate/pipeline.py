"""Continued texts as transformers returns them: the pipeline ``text-generation``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from redhost.core.types import as_list
from redhost.registry.errors import UsageError
from redhost_generate.decode import generate, generate_batch
from redhost_generate.grammar import JsonGrammar
from redhost_generate.sampling import Sampling

if TYPE_CHECKING:
    from redhost.core.host import Host

__all__ = ["TextGeneration"]


class TextGeneration:
    """Prompts → generated texts.

    Args:
        host: The host whose current generation generates.
    """

    task = "text-generation"

    def __init__(self, host: Host) -> None:
        self.host = host

    def __call__(
        self,
        text_inputs: str | Iterable[str],
        *,
        max_new_tokens: int = 100,
        do_sample: bool = True,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        json_schema: Mapping[str, Any] | None = None,
        return_full_text: bool = True,
        batch_size: int = 1,
    ) -> list[Any]:
        """Return the continuations of prompts.

        Args:
            text_inputs: One prompt, or any iterable of prompts.
            max_new_tokens: How many tokens at most.
            do_sample: Whether tokens are sampled; otherwise the most probable one is taken.
            temperature: The temperature of sampling.
            top_k: The number of most probable tokens that may be drawn; 0 for no limit.
            top_p: The probability that the tokens which may be drawn have together.
            repetition_penalty: See `Sampling`.
            seed: The seed of sampling.
            json_schema: The JSON schema of each continuation (`JsonGrammar`); None for any text.
            return_full_text: Whether the prompt precedes its continuation.
            batch_size: How many prompts are continued together, in shared passes of the encoder;
                more than one changes probabilities by rounding.

        Raises:
            MissingError: If there is a schema, but llguidance is not installed.
            UsageError: If a number is out of its range, or the schema cannot be used.

        Returns:
            A list with one dictionary, with ``generated_text``, and with a schema
            ``finish_reason``: ``stop``, or ``length`` where a limit cut the JSON; for several
            prompts, a list of those.
        """
        one, prompts = isinstance(text_inputs, str), as_list(text_inputs, str, "text")
        t, model = temperature if do_sample else 0.0, self.host.composed
        sampling = Sampling(top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty)
        if batch_size < 1:
            raise UsageError("no such batch", expected="at least 1 text", found=str(batch_size))
        made = list[list[dict[str, str]]]()
        for start in range(0, len(prompts), batch_size):
            some = prompts[start : start + batch_size]
            grammars = [
                None if json_schema is None else JsonGrammar(model, json_schema) for _ in some
            ]
            texts = generate_batch(
                [
                    generate(
                        model,
                        prompt,
                        max_tokens=max_new_tokens,
                        temperature=t,
                        seed=seed,
                        sampling=sampling,
                        grammar=grammar,
                    )
                    for prompt, grammar in zip(some, grammars, strict=True)
                ]
            )
            for prompt, text, grammar in zip(some, texts, grammars, strict=True):
                answer = {"generated_text": prompt + text if return_full_text else text}
                if grammar is not None:
                    answer["finish_reason"] = "stop" if grammar.finished else "length"
                made.append([answer])
        return made[0] if one else made
