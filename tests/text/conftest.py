"""People's texts and an encoder that has read some: not among what `make test` installs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

import pytest
from red_lab.newsgroups import DATA, ENCODER

for package in (DATA, ENCODER):
    try:
        distribution(package)
    except PackageNotFoundError:
        pytest.skip("`make .venv/text` installs them", allow_module_level=True)
