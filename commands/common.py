"""Shared parts of commands: options, output for people and for programs, progress."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..core.host import Host
    from ..core.plugins.manager import Plugins
    from ..core.session import Workers
    from ..core.types import Row, StagedProgress
    from ..registry.wheel.signing import PublicKey


LOCAL = "local"
"""The built-in engine; with one worker it is this process."""

F = TypeVar("F", bound=Callable[..., Any])


_HOME = partial(
    click.option,
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="REDHOST_HOME",
    help="State folder (default: .redhost in the current folder).",
)

home_option = _HOME()
"""Adds ``--home``."""

device_option = click.option("--device", help="Device of the backbone: cpu, cuda, or bf16.")
"""Adds ``--device``."""

backbone_option = click.option("--backbone", help="The installed backbone to use.")
"""Adds ``--backbone``."""

domain_option = click.option(
    "--domain-field",
    metavar="TEXT",
    help="Field with the id of the expert that a row belongs to (default: domain, if present).",
)
"""Adds ``--domain-field``."""

tolerance_option = click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="POINTS",
    help="Loss allowed per domain; more is refused (default: 1, or 2 gate rows if more).",
)
"""Adds ``--tolerance``."""

key_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="PUB.pem",
    help="Refuse a wheel that none of these signed (default: keys in [tool.redhost], whose lists "
    "of what is revoked count as well).",
)
"""Adds ``--key``, for wheels; see `chosen_keys`."""


def composition_options(command: F) -> F:
    """Add ``--home`` and ``--question``; the command is given the folder that both select."""
    question = click.option(
        "--question",
        metavar="NAME",
        is_eager=True,  # so that it is parsed before the home
        expose_value=False,
        callback=_note_question,
        help="Named question to use, instead of the default question.",
    )
    return _HOME(callback=_home_of_question)(question(command))


_QUESTION = "redhost.question"


def _note_question(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_QUESTION] = value


def _home_of_question(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    with imports():
        from ..registry.home.questions import home_of, require_home
        from ..registry.queries.settings import resolve_home

    if (question := ctx.meta.get(_QUESTION)) is None:
        return None if value is None else require_home(value)
    return home_of(resolve_home(value), question)


class JsonOption(click.Option):
    """``--json``, with the type of the output, from which the reference is generated.

    Attributes:
        prints: A type by its path in `redhost` or in a plugin, or ``list[…]`` of one; not imported.
        also: Keys that some options add to it, with their types.
    """

    def __init__(
        self, *args: Any, prints: str, also: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.prints, self.also = prints, also or {}


def json_option(prints: str, **also: str) -> Callable[[F], F]:
    """Add ``--json`` to a command that prints a type; see `JsonOption`."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        cls=JsonOption,
        prints=prints,
        also=also,
        help="Print JSON.",
    )


def engine_options(command: F) -> F:
    """Add ``--engine`` and ``--workers``."""
    engine = click.option(
        "--engine",
        metavar="NAME",
        default=LOCAL,
        show_default=True,
        help="Engine of the workers: local, or one from a trusted plugin.",
    )
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of parallel workers, one thread each.",
    )
    return engine(workers(command))


def field_options(command: F) -> F:
    """Add ``--text-field`` and ``--label-field``."""
    text = click.option(
        "--text-field", default="text", show_default=True, help="Field with the text."
    )
    label = click.option(
        "--label-field", default="label", show_default=True, help="Field with the answer."
    )
    return text(label(command))


class Share(click.ParamType[float]):
    """A share, as a percentage or a number from 0 to 1, 1 excluded."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share as a number."""
        from ..registry.errors import SettingsError
        from ..registry.queries.settings import parse_share

        try:
            return parse_share(str(value))
        except SettingsError as e:
            self.fail(str(e), param, ctx)


def open_host(
    home: Path | None,
    *,
    backbone: str | None = None,
    device: str | None = None,
    engine: str = LOCAL,
    workers: int = 1,
) -> Host:
    """Open the host; this imports torch."""
    with imports():
        from ..core.host import Host

    if engine == LOCAL and workers == 1:
        return Host.open(home, backbone=backbone, device=device)
    import torch

    from ..core.plugins.manager import Plugins

    plugins = Plugins()
    others = open_workers(engine, workers, plugins)
    # Bits may depend on the number of threads: with the workers' number, cached results match.
    torch.set_num_threads(1)
    return Host.open(home, backbone=backbone, device=device, plugins=plugins, workers=others)


def read_data(
    home: Path | None,
    data: str | None,
    *,
    text_field: str,
    label_field: str,
    domain_field: str | None = None,
) -> list[Row] | None:
    """Read rows for the task of a home's composition; None if no file is named.

    No model is loaded for this, so that errors in the file are reported at once.
    """
    if data is None:
        return None
    from ..core.training.rows import read_rows
    from ..registry.home.store import Store
    from ..registry.package.forms import DEFAULT_TASK
    from ..registry.package.manifest import parse_backbone
    from ..registry.queries.inventory import current_record
    from ..registry.queries.settings import resolve_home

    record, manifest = current_record(where := resolve_home(home)), None
    if record is not None:
        stored = Store(where).file(record.backbone.digest, "backbone.json")
        manifest = parse_backbone(stored).value
    return read_rows(
        data,
        task=manifest.task if manifest else DEFAULT_TASK,
        text_field=text_field,
        label_field=label_field,
        domain_field=domain_field,
        document_field="domain",
    )


def open_workers(engine: str, workers: int, plugins: Plugins | None = None) -> Workers:
    """Return workers on an engine; redhost-ray has them, as it has the command `sweep`.

    Raises:
        MissingError: If redhost-ray is not installed.
        UsageError: If no such engine exists.
    """
    from .lazy import import_beside

    open_others = import_beside(
        "sweep", "redhost_ray.workers:open_workers", needed_for="an engine with workers"
    )
    others: Workers = open_others(engine, workers, plugins)
    return others


def chosen_keys(given: tuple[str, ...]) -> tuple[PublicKey, ...]:
    """Return the keys given on the command line, else those of the project; usually none."""
    from ..registry.queries.settings import load_settings
    from ..registry.wheel.signing import read_keys

    return read_keys(given or load_settings().keys or ())


def cut_texts(cuts: Sequence[int | None]) -> str:
    """Return how many texts were truncated, and where, from the texts' `Answer.cut`; or nothing."""
    lengths = [n for n in cuts if n is not None]
    return f"{len(lengths)} of {len(cuts)} texts cut after {lengths[0]} tokens" if lengths else ""


@contextmanager
def imports() -> Iterator[None]:
    """Import large modules in the block; the objects they create are never collected.

    Otherwise the garbage collector would visit them several times during the import, and once more
    at exit. That is a tenth of `list-experts`; of torch it takes longer than loading this package.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def typed(text: str) -> str:
    """Return a text from the command line, or all of standard input for ``-``.

    Raises:
        UsageError: If it is not UTF-8.
    """
    from ..registry.errors import UsageError

    piped = text == "-"
    data = sys.stdin.buffer.read() if piped else text.encode("utf-8", "surrogateescape")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageError(
            "standard input cannot be read" if piped else "the text cannot be read",
            expected="UTF-8",
            found=f"byte 0x{data[e.start]:02x}",
        ) from e


def print_json(value: object) -> None:
    """Print a value, or structs, as JSON on stdout."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    click.echo(text.decode())


@contextmanager
def bar(title: str) -> Iterator[StagedProgress]:
    """Show progress on stderr: bars on a terminal, otherwise a line every 30 seconds."""
    from .progress import draw, say

    with (draw if sys.stderr.isatty() else say)(title) as progress:
        yield progress
