"""Render chat templates in a process of their own, which is killed where one does not end.

A template is a program of a package's author: jinja's sandbox keeps it from files and objects, but
not from nested loops or huge texts. Run as a module, this is the process; it prints an empty line
when it is ready, then for each line with a request one line with the outcome.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redhost
from redhost_serve.problems import HttpProblem

__all__ = ["ChatProcess"]

SECONDS = 2.0
"""Seconds that one prompt may take."""
START = 60.0
"""Seconds in which the process has to start: it imports transformers' renderer."""
LONGEST = 2**20
"""Most characters of a prompt."""
MEMORY = 2**29
"""Bytes that the process may allocate beyond those that it starts with."""


class ChatProcess:
    """A process that renders one prompt at a time; one that fails is replaced at the next prompt.

    Args:
        seconds: Seconds that one prompt may take.
    """

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._child: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def render(self, tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt of a conversation, rendered by the tokenizer's own chat template.

        Raises:
            HttpProblem: 400, if the template refuses the messages or exceeds a limit.
        """
        request = {
            "messages": messages,
            "template": tokenizer.get_chat_template(),
            "tokens": tokenizer.special_tokens_map,
            "seconds": self.seconds + 1,
        }
        try:
            outcome = self._ask(json.dumps(request))
        except (queue.Empty, OSError):
            self.close()
            raise HttpProblem(
                400,
                "the backbone's chat template does not render these messages within "
                f"{self.seconds:g} seconds and {MEMORY >> 20} MiB",
            ) from None
        if "prompt" not in outcome:
            raise HttpProblem(400, "the backbone's chat template refuses these messages")
        return str(outcome["prompt"])

    def _ask(self, request: str) -> dict[str, Any]:
        child = self._started()
        assert child.stdin is not None  # noqa: S101  (it is a pipe)
        child.stdin.write(f"{request}\n")
        child.stdin.flush()
        outcome: dict[str, Any] = json.loads(self._line(self.seconds))
        return outcome

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = subprocess.Popen(  # noqa: S603  (our own command)
                redhost.plugins.python_command("-m", "redhost_serve.chat_process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="ascii",
            )
            self._lines = queue.SimpleQueue()
            reading = threading.Thread(target=_read, args=(self._child, self._lines), daemon=True)
            reading.start()
            self._line(START)
        return self._child

    def _line(self, seconds: float) -> str:
        """Return the next line of the process.

        Raises:
            queue.Empty: If there is none within these seconds.
            BrokenPipeError: If the process has ended.
        """
        line = self._lines.get(timeout=seconds)
        if not line:
            raise BrokenPipeError
        return line

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with child:  # closes the pipes and waits
                pass


def _read(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass on the lines of a process, and an empty text when there are no more."""
    assert child.stdout is not None  # noqa: S101  (it is a pipe)
    try:
        for line in child.stdout:
            lines.put(line)
    except ValueError:  # closed meanwhile
        pass
    lines.put("")


def _serve() -> None:
    """Answer requests until there are no more: the work of the process."""
    from transformers.utils.chat_template_utils import render_jinja_template

    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what else is printed is for the log
    _limit_memory()
    print(file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        _limit_time(request["seconds"])
        outcome = {}
        try:
            prompts = render_jinja_template(
                conversations=[request["messages"]],
                chat_template=request["template"],
                add_generation_prompt=True,
                **request["tokens"],
            )[0]
            if len(prompts[0]) <= LONGEST:
                outcome = {"prompt": prompts[0]}
        except Exception as e:  # a template may raise any exception
            print(f"redhost: a chat template raised {type(e).__name__}", file=sys.stderr)  # noqa: T201
        _limit_time(0)
        print(json.dumps(outcome), file=answers, flush=True)


def _limit_memory() -> None:
    """Bound the memory of this process, where the system can."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (ImportError, OSError):
        return
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_time(seconds: float) -> None:
    """End this process after some seconds even if the server has ended; 0 for never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    _serve()
