"""Section `answers`: latency of a text's whole answer in a warm process.

Times include tokenisation. redhost is compared with the encoder alone by transformers,
sentence-transformers and onnxruntime, and with sentence-transformers plus scikit-learn's logistic
head. All get the same real texts in turns, in one process with one thread; memory is measured in
separate processes. Takes a quarter of an hour on a quiet machine, and some minutes more the first
time; ``--runs 1 --texts 200 --backbone minilm`` is a trial of a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.bench.answers.measure import measure
from red_lab.bench.answers.systems import FLOOR, SYSTEMS
from red_lab.bench.section import Section

__all__ = ["SECTION", "by_size"]


def by_size(cases: Mapping[str, Any], floor: str | None = None) -> dict[str, Any]:
    """Return cases in the order of their numbers of texts.

    Args:
        cases: Times of every system, by case.
        floor: The system that these cases include; None for the cases without a padded pass.
    """
    sizes = {case: int(case.split()[0].replace(",", "")) for case in cases}
    chosen = (case for case, sides in cases.items() if (FLOOR in sides) == (floor is not None))
    return {case: cases[case] for case in sorted(chosen, key=lambda case: (sizes[case], case))}


SECTION = Section(
    name="answers",
    measure=measure,
    names={"systems": tuple(SYSTEMS), "floor": FLOOR, "by_size": by_size, "mib": 2**20},
)
