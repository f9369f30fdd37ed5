"""Self-contained HTML pages: one file each, which load nothing."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from redhost_report.explain import Explanation
from redhost_report.report import GenerationReport

__all__ = ["explanation_page", "report_page"]

WORST = 20
"""Maximum number of confusions (label, wrong answer) shown, the most frequent first."""


def explanation_page(found: Sequence[Explanation]) -> str:
    """Return explanations as a page."""
    return _templates().get_template("explain.html").render(found=found)


def report_page(found: GenerationReport) -> str:
    """Return a generation as a page."""
    wrong = []
    if found.evaluation is not None:
        pairs = (
            (label, answer, rows)
            for label, row in (found.evaluation.confusion or {}).items()
            for answer, rows in row.items()
            if answer != label
        )
        wrong = sorted(pairs, key=lambda pair: -pair[2])[:WORST]
    return _templates().get_template("report.html").render(found=found, wrong=wrong)


def _templates() -> jinja2.Environment:
    """Return the template environment, which escapes texts and labels."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("redhost_report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["share"] = lambda x: "n/a" if x is None else f"{x:.3f}"
    return made
