"""Files and folders of the source that a page names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, code_in

_PATH = re.compile(r"(?:flows|connectors|stores|tests|benchmarks|k8s|docs)/[\w/.*-]*")
_MADE = "benchmarks/results"  # by `make bench`


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = {piece for piece in code_in(page) if _PATH.fullmatch(piece)}
    missing = [
        one for one in sorted(named) if not one.startswith(_MADE) and not any(ROOT.glob(one))
    ]
    assert missing == []
