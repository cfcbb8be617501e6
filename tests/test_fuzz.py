"""A fixed corpus of damaged files; `benchmarks/fuzz.py` tries as many as you like."""

from __future__ import annotations

import fuzz
import pytest


@pytest.mark.parametrize("name", fuzz.READERS)
def test_a_damaged_file_is_read_rightly_or_refused(name: str) -> None:
    share = fuzz.READERS[name].share / sum(reader.share for reader in fuzz.READERS.values())
    tally = fuzz.fuzz([name], round(500 * share), seed=0)[name]
    assert not tally.problems
    assert tally.counts.total() == round(500 * share)
