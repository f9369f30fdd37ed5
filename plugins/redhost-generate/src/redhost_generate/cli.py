"""The command that continues a text: generate."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from redhost_author.options import seed_option

from redhost.commands.common import (
    composition_options,
    device_option,
    json_option,
    open_host,
    print_json,
    typed,
)
from redhost.commands.printing import Verbatim
from redhost.commands.tables import table
from redhost.registry.errors import RedhostError

if TYPE_CHECKING:
    from redhost.core.model.composed import ComposedModel
    from redhost_generate.decode import Token
    from redhost_generate.grammar import JsonGrammar
    from redhost_generate.printed import Generated

__all__ = ["generate", "stream"]


COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
"""Colours of the columns, in turn; the backbone's own column has the terminal's colour."""

CONTROL = {c: None for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t"}
"""Control characters of terminals, which a model's text must not contain."""


@click.command()
@click.argument("prompt")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Most tokens to add.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Tokens are sampled from p^(1/T); 0 takes the most probable one.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    default=0,
    help="Only the K most probable tokens (default: all).",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Only the most probable tokens that together have the probability P.",
)
@click.option(
    "--min-p",
    type=click.FloatRange(min=0, max=1),
    default=0.0,
    show_default=True,
    help="Only tokens with at least this part of the largest probability.",
)
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(min=0, max=10, min_open=True),
    default=1.0,
    show_default=True,
    help="More than 1 makes tokens that are in the text already less probable.",
)
@click.option(
    "--presence-penalty",
    type=click.FloatRange(min=-2, max=2),
    default=0.0,
    show_default=True,
    help="Subtracted from log p of tokens that are in the text already.",
)
@click.option(
    "--frequency-penalty",
    type=click.FloatRange(min=-2, max=2),
    default=0.0,
    show_default=True,
    help="The same, for each time that the token is in the text.",
)
@click.option(
    "--json-schema",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The added text is JSON of the JSON schema in FILE.",
)
@seed_option
@click.option("--expert", metavar="ID", help="Generate with one expert, or backbone, alone.")
@click.option("--explain", is_flag=True, help="Show the heaviest expert of each token.")
@composition_options
@device_option
@json_option("redhost_generate.printed.Generated")
def generate(
    *,
    prompt: str,
    max_tokens: int,
    temperature: float,
    json_schema: Path | None,
    seed: int,
    expert: str | None,
    explain: bool,
    home: Path | None,
    device: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Continue PROMPT, token by token; - reads standard input."""
    text = typed(prompt).removesuffix("\n") if prompt == "-" else typed(prompt)
    host = open_host(home, device=device)
    import redhost_generate

    composed = host.composed  # another may be published before the last token is printed
    grammar = None if json_schema is None else _grammar(composed, json_schema)
    tokens = redhost_generate.generate(
        composed,
        text,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        expert=expert,
        sampling=redhost_generate.Sampling(**limits),
        grammar=grammar,
    )
    if as_json:
        generated = list(tokens)
        report: Generated = {
            "prompt": text,
            "text": "".join(t.text for t in generated),
            "generation": composed.generation,
            "seed": seed,
            "temperature": temperature,
            "sampling": limits,
            "tokens": len(generated),
            "weights": _means(generated),
        }
        if grammar is not None:
            report["complete"] = grammar.finished
        if explain:
            report["table"] = generated
        print_json(report)
    else:
        stream(text, tokens, explain=explain)
    _require_complete(composed, grammar)


def _grammar(model: ComposedModel, file: Path) -> JsonGrammar:
    from redhost_generate.grammar import JsonGrammar, read_schema

    return JsonGrammar(model, read_schema(file))


def _require_complete(model: ComposedModel, grammar: JsonGrammar | None) -> None:
    """Refuse a text that ended at a limit before its JSON was complete."""
    if grammar is None or grammar.finished:
        return
    longest = model.backbone.trunk.longest
    context = "" if longest is None else f"; with the prompt, the model reads {longest} tokens"
    raise RedhostError(
        "the text is not complete JSON",
        expected="an end before the limit of tokens",
        found="none",
        hint="Raise --max-tokens, or give the schema's arrays and strings a maxItems and maxLength"
        f"{context}.",
    )


def stream(prompt: str, tokens: Iterable[Token], *, explain: bool) -> None:
    """Print tokens as they are generated; if interrupted, end the line."""
    seen: list[Token] = []
    terminal = sys.stdout.isatty()
    painted = explain and terminal and not os.environ.get("NO_COLOR")
    click.echo(prompt, nl=False)
    try:
        for token in tokens:
            seen.append(token)
            shown = token.text.translate(CONTROL) if terminal else token.text
            sys.stdout.write(Verbatim(_paint(shown, token.weights) if painted else shown))
            sys.stdout.flush()
    finally:
        click.echo()
    if explain and seen:
        _explain(seen, painted=painted)


def _paint(text: str, weights: dict[str, float], column: str | None = None) -> str:
    """Colour a text by a column; by default the one with the largest weight."""
    columns = [c for c in weights if c != "backbone"]
    column = column or max(weights, key=weights.__getitem__)
    if not text or column not in columns:
        return text
    return click.style(text, fg=COLOURS[columns.index(column) % len(COLOURS)])


def _explain(tokens: Sequence[Token], *, painted: bool) -> None:
    """Print each column's mean weight, and the share of tokens where its weight is largest."""
    means, first = _means(tokens), tokens[0].weights
    heaviest = Counter(max(t.weights, key=t.weights.__getitem__) for t in tokens)
    shares = {c: heaviest[c] / len(tokens) for c in means}
    if not painted:
        rows = [(c, f"{means[c]:.3f}", f"{shares[c]:.1%}") for c in means]
        table("who carried the text", ("column", "mean weight", "of the tokens"), rows)
        return
    for column, mean in means.items():
        name = _paint(f"{column:<12}", first, column)
        share = f"{shares[column]:4.0%} of the tokens, mean weight {mean:.2f}"
        sys.stdout.write(Verbatim(f"  {name} {share}\n"))


def _means(tokens: Sequence[Token]) -> dict[str, float]:
    """Return the mean weight of every column over the tokens; empty without tokens."""
    columns = tokens[0].weights if tokens else ()
    return {c: sum(t.weights[c] for t in tokens) / len(tokens) for c in columns}
