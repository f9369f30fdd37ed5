"""Section `answers`: latency of a text's whole answer in a warm process.

Times include tokenisation. redhost, in process and over HTTP, is compared with the encoder alone by
transformers, sentence-transformers and onnxruntime, and with sentence-transformers plus
scikit-learn's logistic head. All get the same real texts in turns, in one process with one thread;
memory is measured in separate processes. Takes a quarter of an hour on a quiet machine, and some
minutes more the first time; ``--runs 1 --texts 200 --backbone minilm`` is a trial of a minute.
"""

from __future__ import annotations

from red_lab.bench.answers.page import page
from red_lab.bench.answers.run import measure

__all__ = ["TITLE", "measure", "page"]

TITLE = "Whole answers"
