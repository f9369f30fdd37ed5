"""Section `answers`: what people wait for once a process is warm, a text's whole answer.

From text to answer, tokens included: redhost in process and over HTTP, and beside it the encoder
alone by transformers, sentence-transformers and onnxruntime, and sentence-transformers with
scikit-learn's logistic head. All get the same real texts in turns, in one process, one thread;
memory is that of processes of their own. Takes a quarter of an hour on a quiet machine, and some
minutes more the first time; ``--runs 1 --texts 200 --backbone minilm`` is a trial of a minute.
"""

from __future__ import annotations

from red_lab.bench.answers.page import page
from red_lab.bench.answers.run import measure

__all__ = ["TITLE", "measure", "page"]

TITLE = "Whole answers"
