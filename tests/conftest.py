"""What all tests share: a site folder of their own, real virtual environments, and wheels."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    chdir,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import folders
import hypothesis
import pytest
import shared_rows
import short_games
from drafts import Draft
from redhost_author.project import ExpertPlan, package_in
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from surroundings import trusting_copies, use_memory
from warm_start import FRESH, SELDOM, start_warm, warm_command

import redhost
from redhost.core.types import BackgroundRow
from redhost.registry.package.discover import from_folder
from redhost.testing import Environment

if TYPE_CHECKING:
    from redhost_author.backbone.trial import BackboneTrial

    from redhost.core.bus.task import Task

# The same examples in every run: a test that fails by chance says nothing of the change at hand.
hypothesis.settings.register_profile("fixed", derandomize=True)
hypothesis.settings.load_profile("fixed")

# Shells start background jobs deaf to Ctrl-C, and children inherit that: some tests type it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Choose where the tests' folders are."""
    use_memory()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among thousands of tests, neither while they are read nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*SELDOM)


TESTS = Path(__file__).parent
FULL = {
    "architectures", "browser", "campaigns/test_kills.py", "docs/typed", "fleet", "fresh",
    "interfaces", "onnx", "ray", "tools/mutation",
}  # fmt: skip
"""What `make test-full` runs."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests that take long, or need more than is installed, to who names them."""
    if TESTS not in collection_path.parents:
        return None
    name = collection_path.relative_to(TESTS).as_posix()
    named = any(
        f"tests/{name}" in Path(a).as_posix() for a in map(str, config.invocation_params.args)
    )
    return True if name in FULL and not named else None


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """Let no command in this process say that it takes long: machines that test may be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redhost.commands.progress.EVERY", 3600.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def warm_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start warm what redhost starts, pip and commands of its own: see `warm_start.py`.

    Not beside tests of `make test-full`, of which some kill or measure what is started.
    """
    names = [item.path.relative_to(TESTS).as_posix() for item in request.session.items]
    with pytest.MonkeyPatch.context() as patch:
        if not any(name.startswith(tuple(FULL)) for name in names):
            patch.setattr(subprocess.Popen, "__init__", start_warm())
        yield


@pytest.fixture(scope="session")
def made_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Path], AbstractContextManager[bool]]:
    """Return a context that fills a folder: with what it was left with under that name before.

    It tells whether the folder is still to be filled, which the first of a worker's tests does.
    """
    return folders.made_once(tmp_path_factory)


@pytest.fixture
def fresh_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start them as users' are started."""
    monkeypatch.setenv(FRESH, "yes")


@pytest.fixture(autouse=True, scope="session")
def trusted_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust copies of this project's plugins."""
    with trusting_copies(tmp_path_factory.mktemp("copies") / "released.json"):
        yield


def _hub_settings() -> frozenset[tuple[str, str]]:
    return frozenset(item for item in os.environ.items() if item[0].startswith("HF_"))


@pytest.fixture(autouse=True, scope="session")
def shared_trial() -> Iterator[None]:
    """Let one process for each hub try every backbone that tests make: each start takes seconds."""
    from redhost_author.backbone import making
    from redhost_author.backbone.trial import BackboneTrial as start  # noqa: N813

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        started: dict[frozenset[tuple[str, str]], BackboneTrial] = {}

        def shared() -> AbstractContextManager[BackboneTrial]:
            hub = _hub_settings()
            if hub not in started:
                with chdir(Path(__file__).parent):  # a test's own folder may be gone later
                    started[hub] = stack.enter_context(start())
            return nullcontext(started[hub])

        patch.setattr(making, "BackboneTrial", shared)
        yield


@pytest.fixture(scope="session")
def rows_by_cache() -> dict[Any, dict[str, Any]]:
    """What this process has encoded: rows by text, for each key of a feature cache."""
    return {}


@pytest.fixture(scope="session")
def rows_of_children(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What processes that tests start have encoded."""
    return tmp_path_factory.mktemp("features")


ENCODING = ("core/backbones", "core/model", "core/training", "docs", "fresh", "registry", "tools")
"""Tests of encoding and of caches, which compute their own features, and those that need none."""


@pytest.fixture(autouse=True)
def encoded_once(
    request: pytest.FixtureRequest,
    rows_by_cache: dict[Any, dict[str, Any]],
    rows_of_children: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Encode each text once for all tests but those under `ENCODING`."""
    if not request.path.relative_to(TESTS).as_posix().startswith(ENCODING):
        shared_rows.install(monkeypatch.setattr, shared_rows.in_memory(rows_by_cache))
        monkeypatch.setenv(shared_rows.FOLDER, str(rows_of_children))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Play short games in some tests, already in what a session's fixtures compose."""
    with pytest.MonkeyPatch.context() as patch:
        if TESTS in item.path.parents:
            short_games.shorten_in(item.path.relative_to(TESTS).as_posix(), patch)
        return (yield)


@pytest.fixture
def quick_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play games for a fifth of the usual steps over tokens, for a tenth over others."""
    short_games.shorten(monkeypatch)


@pytest.fixture
def environment(redhost_environment: Environment) -> Environment:
    """Return an empty environment beside the real one."""
    return redhost_environment


@pytest.fixture
def expert_reads() -> Callable[..., AbstractContextManager[list[str]]]:
    """Return a context that lists every call of some functions, by default reads of experts."""

    @contextmanager
    def listed(*names: str) -> Iterator[list[str]]:
        reads: list[str] = []

        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_name in (names or ("read_expert",)):
                reads.append(frame.f_code.co_name)

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            yield reads
        finally:
            sys.setprofile(before)

    return listed


@pytest.fixture
def in_place() -> type[redhost.Live]:
    """Control of the pointer: the parts of what is served are replaced one after the other."""

    class InPlace(redhost.Live):
        def _move(self, model: redhost.ComposedModel) -> None:
            serving = self._serving
            if serving is None:
                super()._move(model)
                return
            object.__setattr__(serving, "bus", model.bus)
            time.sleep(0.05)  # as long as copying weights of a real size takes
            object.__setattr__(serving, "generation", model.generation)

    return InPlace


SESSION = """
import contextlib, io, json, sys
from redhost.cli import main

def run(command):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(command)
        except SystemExit as e:
            return int(e.code or 0), out.getvalue(), err.getvalue()

print(json.dumps([run(command) for command in json.loads(sys.argv[1])]))
"""


PIP_EACH = """
import sys
from pip._internal.cli.main import main

for wheel in sys.argv[1:]:
    main(["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", wheel])
"""


@dataclass(frozen=True)
class Venv:
    """A real virtual environment that also sees what this one has installed."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def site(self) -> Path:
        return next((self.folder / "lib").glob("python*")) / "site-packages"

    def run(
        self, *arguments: str, home: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of redhost as its users do."""
        variables = {"REDHOST_HOME": str(home), "REDHOST_CONFIG": str(home / "config")}
        return subprocess.run(
            warm_command("-m", "redhost", *arguments, python=self.python),
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables, **(env or {})},
        )

    def session(self, *commands: tuple[str, ...], home: Path) -> list[tuple[int, str, str]]:
        """Run commands one after the other in one process: code, stdout and stderr of each."""
        done = subprocess.run(
            warm_command("-c", SESSION, json.dumps(commands), python=self.python),
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "REDHOST_HOME": str(home)},
        )
        assert done.returncode == 0, done.stderr
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    def listed(self, home: Path, *, key: str = "dist") -> dict[str, dict[str, Any]]:
        """Return what `list-experts` shows, by distribution or id."""
        done = self.run("list-experts", "--json", home=home)
        assert done.returncode == 0, done.stderr
        return {x[key]: x for x in json.loads(done.stdout)}

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the real pip of this environment, without any index."""
        return subprocess.run(
            warm_command(
                "-m", "pip", "--disable-pip-version-check", *arguments, python=self.python
            ),
            check=False,
            capture_output=True,
            text=True,
        )

    def install(self, *wheels: Path) -> subprocess.CompletedProcess[str]:
        """Install wheels as anybody does."""
        return self.pip("install", "--quiet", "--no-index", "--no-deps", *map(str, wheels))

    def install_each(self, *wheels: Path) -> None:
        """Install wheels one after the other by the real pip; what it refuses is passed over."""
        command = warm_command("-c", PIP_EACH, *map(str, wheels), python=self.python)
        subprocess.run(command, check=True, capture_output=True)

    def contents(self) -> dict[str, bytes]:
        """Return every file of the environment, byte code included."""
        files = (p for p in self.folder.rglob("*") if p.is_file())
        return {p.relative_to(self.folder).as_posix(): p.read_bytes() for p in files}


@pytest.fixture(scope="session")
def make_venv() -> Callable[[Path], Venv]:
    """Return the function that makes a virtual environment in a folder."""

    def make(folder: Path) -> Venv:
        venv.create(folder, symlinks=True)
        made = Venv(folder)
        real = sysconfig.get_path("purelib")
        # Packages of its own come first; torch, pip and what ships come from the real one.
        (made.site / "real.pth").write_text(f"import site; site.addsitedir({real!r})\n")
        return made

    return make


@pytest.fixture(scope="session")
def here() -> Venv:
    """Return the environment that the tests run in, which none of them may change."""
    return Venv(Path(sys.prefix))


@pytest.fixture(scope="session")
def draft() -> Callable[..., Draft]:
    """Return the function that drafts a sound wheel: range3's expert under another id."""
    origin = importlib.util.find_spec("red_expert_range3").origin
    content = {p.name: p.read_bytes() for p in Path(origin).parent.iterdir() if p.is_file()}

    def make(expert_id: str, *, version: str = "0.1.0", **changes: Any) -> Draft:
        made = Draft(f"red-expert-{expert_id}", {}, version)
        original = json.loads(content["expert.json"])
        manifest = {**original, "id": expert_id, "off_domain": None, **changes}
        files = {**content, "expert.json": json.dumps(manifest).encode()}
        metadata = f"Metadata-Version: 2.1\nName: {made.dist}\nVersion: {version}\n"
        wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        made.members = {f"{made.module}/{name}": data for name, data in files.items()}
        made.members |= {
            f"{made.info}/METADATA": metadata.encode(),
            f"{made.info}/WHEEL": wheel.encode(),
            f"{made.info}/entry_points.txt": (
                f"[redhost.experts]\n{expert_id} = {made.module}\n".encode()
            ),
        }
        return made

    return make


# -- a language model ------------------------------------------------------------------------------


def write_speaker(
    folder: Path,
    *,
    tied: bool = True,
    marks: Mapping[str, str] | None = None,
    longest: int = 512,
    seed: int = 0,
) -> Path:
    """Write a random, tiny Qwen3 that tells bytes, as an ordinary Hugging Face folder.

    Args:
        folder: Where.
        tied: Whether its head is its embedding.
        marks: Its special tokens by name.
        longest: Its longest input.
        seed: Of the weights.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    marks = {"bos_token": "<s>", "eos_token": "</s>"} if marks is None else marks
    signs = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *dict.fromkeys(marks.values())]
    read = Tokenizer(models.BPE(vocab={s: n for n, s in enumerate(signs)}, merges=[]))
    read.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    read.decoder = decoders.ByteLevel()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(signs),
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=8,
                max_position_embeddings=longest,
                tie_word_embeddings=tied,
            )
        )
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.3)  # states that differ between texts
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=read, **marks).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_speaker() -> Callable[..., Path]:
    """Return the function that writes a tiny language model into a folder."""
    return write_speaker


@pytest.fixture(scope="session")
def speaker_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speaker(tmp_path_factory.mktemp("speaker"))


SAYINGS = {
    "sums": lambda n: f"{n} + {n + 3} = {2 * n + 3}\n",
    "tales": lambda n: f"the {'bcdfghmr'[n % 8]}{'aiou'[n % 4]}{'tng'[n // 8 % 3]} sat down\n",
    "code": lambda n: f"def f{n}(x):\n    return x * {n}\n",
}
"""What the documents of each domain are made of."""


@pytest.fixture(scope="session")
def documents() -> Callable[..., list[dict[str, str]]]:
    """Return the function from a domain to its documents, as an author's rows."""

    def of(name: str, count: int = 24) -> list[dict[str, str]]:
        made = ((n, "".join(SAYINGS[name](5 * n + i) for i in range(5))) for n in range(count))
        return [{"text": text, "document": f"{name}-{n}"} for n, text in made]

    return of


@pytest.fixture(scope="session")
def generation() -> Task:
    """The task of language models, registered as its plugin registers it."""
    from redhost_generate import hooks

    hooks.redhost_register_tasks(redhost.plugins.register_task)
    return redhost.plugins.make_task("generation")


@pytest.fixture(scope="session")
def speaker_folder(speaker_model, generation, tmp_path_factory) -> Path:
    """The language model as a backbone package's folder."""
    from redhost_author.backbone.making import BackbonePlan, new_backbone

    project = tmp_path_factory.mktemp("speaker-package")
    background = [BackgroundRow(text=f"Nothing of note, {n}; else?") for n in range(8)]
    new_backbone(
        project,
        BackbonePlan(id="speaker", source=f"hf:{speaker_model}", task=generation),
        background=background,
    )
    return package_in(project)


@pytest.fixture(scope="session")
def rows_of(documents) -> Callable[..., list[redhost.Row]]:
    """Return the function from a domain to its documents."""
    return lambda name, count=24: [
        redhost.Row(text=d["text"], label="", domain=d["document"]) for d in documents(name, count)
    ]


ADAPTERS: dict[str, dict[str, Any]] = {
    "sums": {"r": 4, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "tales": {"r": 2, "target_modules": ["layers.1.mlp.up_proj"], "use_dora": True},
    "code": {"r": 3, "target_modules": ["o_proj", "down_proj"], "lora_bias": True},
}


@pytest.fixture(scope="session")
def saved_adapters(speaker_model, tmp_path_factory) -> dict[str, Path]:
    """Adapters of the language model as PEFT saves them, by id; none of them says little."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folders = {}
    for n, (name, options) in enumerate(ADAPTERS.items()):
        folder = tmp_path_factory.mktemp(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(n)
            model = AutoModelForCausalLM.from_pretrained(speaker_model, dtype=torch.float32)
            made = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
            with torch.no_grad():
                for key, p in made.named_parameters():
                    if "lora_" in key:
                        p.add_(0.05 * torch.randn_like(p))
            made.save_pretrained(folder)
        folders[name] = folder
    return folders


@pytest.fixture(scope="session")
def adapter_packages(saved_adapters, speaker_folder, rows_of, tmp_path_factory) -> dict[str, Path]:
    """Each of them as a package's folder; none has learnt anything, which its import says."""
    from redhost_peft.adapter import import_adapter

    made = {}
    for name, folder in saved_adapters.items():
        project = tmp_path_factory.mktemp("imported") / f"red-expert-{name}"
        files = {n: (folder / n).read_bytes() for n in (CONFIG, WEIGHTS)}
        plan = ExpertPlan(id=name, form="lora")
        with suppress(redhost.errors.HarmError):  # what it wrote is there to look at
            import_adapter(project, plan, files, rows_of(name), package=from_folder(speaker_folder))
        made[name] = package_in(project)
    return made


def write_word_reader(folder: Path, tokenizer: Any) -> Path:
    """Write a tiny random encoder that reads both ways, whose states keep what their token is."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=32,
            intermediate_size=64,
            max_position_embeddings=64,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
        model = BertModel(config)
        torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_word_reader() -> Callable[..., Path]:
    """Return `write_word_reader`, for a tokenizer of one's own, or for wordpieces."""

    def make(folder: Path, *wordpieces: str, tokenizer: Any = None) -> Path:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        if tokenizer is None:
            vocabulary = {
                p: n for n, p in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *wordpieces))
            }
            tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        return write_word_reader(folder, tokenizer)

    return make
