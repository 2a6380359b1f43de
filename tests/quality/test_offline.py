"""With a model, too, nothing reaches a network: evaluation, checkup, training of the lab."""

import json

from tests.test_no_network import run_all

TINY = ["--max-steps", "1", "--batch-size", "8", "--eval-limit", "0"]
COMMANDS = [
    ["evaluate", "musique", "--model", "lab", "--limit", "1", "--samples", "1"],
    ["checkup", "musique", *TINY],
    ["train", "musique", *TINY, "--output-dir", "trained"],
    ["diagnose", "trained"],
]


def test_no_command_with_a_model_asks_the_network(tmp_path):
    found = run_all(COMMANDS, tmp_path, seconds=1800)  # half a minute on a machine that is free
    failed = {words: said for words, said in found.items() if said[0] not in (0, 1)}
    assert not failed and "the network was asked" not in json.dumps(found)
