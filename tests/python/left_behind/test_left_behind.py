"""Whatever happens to a trainer or its workers, and whenever: no hang, and nothing stays.

``make left-behind ROUNDS=200`` runs more rounds; ``SEED=`` repeats those of a failure.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from .rounds import Fault, Round, run, without_last_words

#: Some fifteen seconds' worth. Seeds are new each time, so that these rounds add up over the runs.
ROUNDS = int(os.environ.get("SUTLER_LEFT_BEHIND_ROUNDS", "8"))
SEED = int(os.environ.get("SUTLER_LEFT_BEHIND_SEED", "0")) or random.randrange(1, 10**9)


def test_only_pythons_own_last_words_are_forgiven() -> None:
    head = "Exception ignored in: <module 'threading' from 'lib/threading.py'>\nTraceback (most recent call last):\n"
    own = (
        head
        + '  File "lib/threading.py", line 1541, in _shutdown\n    def _shutdown():\n    \nKeyboardInterrupt: \n'
    )
    ours = head + '  File "sutler/_cuda.py", line 1, in close\nKeyboardInterrupt: \n'
    other = "Exception ignored in: <function EngineRoom.__del__>\nKeyboardInterrupt: \n"
    assert "Exception ignored" not in without_last_words(own)
    assert "Exception ignored" in without_last_words(ours)
    assert without_last_words(own + other).strip() == other.strip()


def test_nothing_is_left_behind(photos: Path, tmp_path: Path) -> None:
    faults = []
    for number in range(ROUNDS):
        each = Round.drawn(SEED + number, photos)
        try:
            run(each, tmp_path / str(number))
        except Fault as fault:
            faults.append(f"{each}\n{fault}")
    if faults:
        head = f"{len(faults)} of {ROUNDS} rounds from SEED={SEED} on"
        pytest.fail("\n\n".join([head, *faults]), pytrace=False)
