"""Section `files`: a million short texts through `redhost predict --in`, killed and resumed.

A file is answered by the actual command, in its own process. From time to time the process is
paused, and the bare encoder gets the texts of the part just written, so that both are timed on the
same texts within the same minute. At the largest size the process is killed several times, at
random moments. Results so far are in the work folder, so the section itself can be interrupted.
A million rows take about an hour on one quiet core; ``--rows 20000`` is a trial of two minutes.
"""

from __future__ import annotations

from red_lab.bench.files.measure import measure
from red_lab.bench.files.page import page

__all__ = ["TITLE", "measure", "page"]

TITLE = "Files"
