"""Files that verl 0.9.1 itself wrote, in a healthy run of 12 steps on the lab policy.

Written by `python benchmarks/verl_live.py --keep tests/fixtures/verl`.
"""

from pathlib import Path

from flatline.trace.importers import open_log
from flatline.trace.importers.several import logs_in

FILES = Path(__file__).parent / "fixtures" / "verl"
PROMPTS, GROUP = 8, 4


def test_every_name_of_its_log_is_known_and_no_line_is_lost():
    trace = open_log(str(FILES / "metrics.jsonl"))
    assert trace.run["unrecognised"] == []
    assert trace.warnings == []
    assert trace.steps["step"].tolist() == list(range(1, 13))
    for column in ("reward", "kl", "entropy", "loss", "grad_norm", "learning_rate", "clip_share"):
        assert column in trace.steps


def test_the_share_of_the_longest_responses_is_not_taken_for_cut_ones():
    """In this run every completion ended by itself, and `response_length/clip_ratio` is up to 0.4:
    the v1 trainer pads to the longest of the batch."""
    trace = open_log(str(FILES / "metrics.jsonl"))
    assert max(row["response_length/clip_ratio"] for row in trace.steps["metrics"]) > 0.3
    assert "truncated_share" not in trace.steps


def test_the_folder_of_its_rollouts_is_one_run_and_not_one_for_each_step():
    assert logs_in(str(FILES / "rollouts")) == [str(FILES / "rollouts")]


def test_its_rollouts_come_in_groups_with_reward_and_gold():
    trace = open_log(str(FILES / "rollouts"))
    assert trace.run["source"] == "import:verl"
    assert trace.run["unrecognised"] == []
    assert set(trace.groups().size) == {GROUP}
    assert trace.groups().n == 2 * PROMPTS
    assert all(trace.rollouts["gold"])
