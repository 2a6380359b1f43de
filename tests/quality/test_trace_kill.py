"""A recording that is killed at any moment opens, and has every step that was completed."""

import random

import pytest

from tests.quality.report import report
from tests.test_trace_files import assert_all_there, kill_and_read

KILLS = 20
_completed: list[int] = []


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_process_killed_at_a_random_moment_loses_no_completed_step(tmp_path, seed):
    done, trace = kill_and_read(tmp_path / "run", random.Random(seed).uniform(0.0, 0.5))
    assert_all_there(done, trace)
    _completed.append(len(done))
    if len(_completed) == KILLS:
        report(
            f"killed {KILLS} times after {min(_completed)} to {max(_completed)} steps: none lost"
        )
