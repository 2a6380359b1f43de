"""Files that prime-rl, NeMo-RL, SkyRL and OpenRLHF themselves wrote, in healthy runs on a CPU.

    tests/fixtures/prime_rl    benchmarks/prime_rl_files.py    prime-rl 0.8.0, 559b447
    tests/fixtures/nemo_rl     benchmarks/nemo_rl_files.py     NeMo-RL 0.7.0
    tests/fixtures/skyrl       benchmarks/skyrl_files.py       SkyRL 0.3.0
    tests/fixtures/openrlhf    benchmarks/openrlhf_files.py    OpenRLHF 0.11.2

Each script says which functions of the framework ran and what stood where GPUs would be.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.errors import NotRecorded
from flatline.trace.importers import open_log
from tests import framework_logs as logs
from tests.test_framework_experiments import SEEDS, each_run, investigate

FILES = Path(__file__).parent / "fixtures"
EVENTS = "events.out.tfevents.1.host.0"
OWN = {"heldout_reward", "reward", "completion_length", "truncated_share"}
LOGS = {
    "prime-rl": FILES / "prime_rl" / "orchestrator" / "metrics.jsonl",
    "prime-rl-trainer": FILES / "prime_rl" / "trainer" / "metrics.jsonl",
    "nemo-rl": FILES / "nemo_rl" / EVENTS,
    "skyrl": FILES / "skyrl" / EVENTS,
    "openrlhf": FILES / "openrlhf" / EVENTS,
}
STEPS = {"prime-rl": 6, "prime-rl-trainer": 6, "nemo-rl": 12, "skyrl": 12, "openrlhf": 12}
TRAINED = {"grad_norm", "learning_rate", "seconds"}
FILLED = {
    "prime-rl": OWN | {"seconds"},
    "prime-rl-trainer": TRAINED | {"entropy", "loss"},
    "nemo-rl": OWN | TRAINED | {"kl", "entropy", "loss"},
    "skyrl": TRAINED
    | {"reward", "heldout_reward", "completion_length", "kl", "entropy", "loss"}
    | {"clip_share", "logprob_gap"},
    "openrlhf": OWN | TRAINED | {"kl", "clip_share", "reward_std_within"},
}
WRITTEN = {
    "nemo-rl": logs.NEMO_RL_METRICS,
    "skyrl": logs.SKYRL_METRICS,
    "openrlhf": logs.OPENRLHF_METRICS,
}
"""Names that other tests write."""
DUMPS = {
    "prime-rl": FILES / "prime_rl" / "orchestrator",
    "nemo-rl": FILES / "nemo_rl",
    "skyrl": FILES / "skyrl",
}
SIZES = {"prime-rl": (8, 8), "nemo-rl": (16, 8), "skyrl": (16, 4)}
"""Groups, and rollouts in each."""
TOKENS = FILES / "prime_rl" / "token_exports"


@pytest.mark.parametrize("name", LOGS)
def test_every_name_of_its_log_is_known_and_no_line_is_lost(name):
    trace = open_log(LOGS[name])
    assert trace.run["unrecognised"] == []
    assert trace.warnings == []
    assert not any("more than once" in note for note in trace.run["notes"])
    assert trace.steps["step"].tolist() == list(range(1, STEPS[name] + 1))
    assert FILLED[name] <= trace.run["aliases"].keys()
    for column in FILLED[name] - {"heldout_reward"}:
        assert np.isfinite(trace.steps[column]).all(), column


@pytest.mark.parametrize("name", LOGS)
def test_its_healthy_log_sets_off_no_alarm(name):
    assert [one.text for one in diagnose(str(LOGS[name])).alarms] == []


@pytest.mark.parametrize("name", WRITTEN)
def test_the_names_that_other_tests_write_are_names_that_the_framework_wrote(name):
    own = {key for row in open_log(LOGS[name]).steps["metrics"] for key in row}
    assert set(WRITTEN[name]) - own == set()


def test_the_values_of_a_line_are_kept():
    last = json.loads(LOGS["prime-rl-trainer"].read_text().splitlines()[-2])
    trace = open_log(LOGS["prime-rl-trainer"])
    assert trace.steps["entropy"][-1] == last["entropy/all/mean"]
    assert trace.steps["metrics"][-1]["mismatch_kl/all/max"] == last["mismatch_kl/all/max"]


@pytest.mark.parametrize("name", DUMPS)
def test_its_rollouts_come_in_groups_with_their_rewards(name):
    trace = open_log(DUMPS[name])
    assert trace.run["unrecognised"] == [] and trace.warnings == []
    groups = trace.groups()
    assert (groups.n, set(groups.size)) == (SIZES[name][0], {SIZES[name][1]})
    assert set(trace.rollouts["reward"]) == {0.0, 1.0}


@pytest.mark.parametrize("name", DUMPS)
def test_its_healthy_rollouts_set_off_no_alarm(name):
    assert [one.text for one in diagnose(str(DUMPS[name])).alarms] == []


def test_rewards_of_a_dump_are_those_of_the_log():
    log, dump = open_log(LOGS["nemo-rl"]), open_log(DUMPS["nemo-rl"])
    assert dump.steps["reward"].tolist() == pytest.approx(log.steps["reward"][:2].tolist())


@pytest.mark.parametrize("folder", [DUMPS["nemo-rl"], TOKENS])
def test_its_tokens_have_the_log_probs_of_sampler_and_trainer(folder):
    tokens = open_log(folder).tokens([1])
    trained = tokens.trained != 0
    assert np.abs(tokens.sampler - tokens.trainer)[trained].max() < 1e-3
    assert trained.any()


def test_what_the_environment_said_is_not_trained_on():
    """In this run of NeMo-RL a judgement of one token ends every sequence."""
    rows = [json.loads(line) for line in (FILES / "nemo_rl" / "train_data_step1.jsonl").open()]
    said = sum(sum(row["token_loss_mask"][0]) for row in rows)
    tokens = open_log(DUMPS["nemo-rl"]).tokens([1])
    assert int((tokens.trained != 0).sum()) == said
    assert int((tokens.trained == 0).sum()) == len(rows)


def test_a_token_export_without_rewards_is_read_for_its_tokens():
    """prime-rl 0.8 writes none."""
    trace = open_log(TOKENS)
    rows = [json.loads(line) for line in (TOKENS / "step_1" / "rank_0.jsonl").open()]
    assert not any("rewards" in row for row in rows)
    assert trace.warnings == [] and trace.run["unrecognised"] == []
    assert trace.steps["step"].tolist() == [1, 2]
    first = rows[0]["advantages"][-1]
    assert trace.rollouts["advantage"][0] == pytest.approx(first)
    with pytest.raises(NotRecorded):
        trace.rollouts["reward"]
    assert [one.text for one in diagnose(str(TOKENS)).alarms] == []


COMPARED = {
    "prime-rl": LOGS["prime-rl"],
    "prime-rl-rollouts": DUMPS["prime-rl"] / "rollouts",
    "nemo-rl": LOGS["nemo-rl"],
    "nemo-rl-rollouts": FILES / "nemo_rl",
    "skyrl": LOGS["skyrl"],
    "skyrl-rollouts": FILES / "skyrl" / "dumped_evals",
    "openrlhf": LOGS["openrlhf"],
    "verl": FILES / "verl" / "metrics.jsonl",
    "verl-rollouts": FILES / "verl" / "rollouts",
    "wandb": FILES / "offline.wandb",
    "tensorboard": FILES / "events.out.tfevents.1794724552.host.0",
}


@pytest.mark.parametrize("name", COMPARED)
def test_an_experiment_finds_its_outcome_in_what_the_framework_wrote(tmp_path, name):
    """The same run on both sides: nothing is gained, and nothing is missing."""
    for folder, *_ in each_run(tmp_path):
        copy_into(folder, COMPARED[name])
    done = investigate(tmp_path, "H32", "--outcome", "reward")
    assert done.exit_code in (0, 1), done.output
    effect = json.loads(done.stdout)["effect"]
    assert (effect["value"], effect["n"]) == (0, SEEDS)


def copy_into(folder: Path, source: Path) -> None:
    """A file as it is; of a folder of steps what is in it."""
    if source.is_file():
        folder.mkdir(parents=True)
        shutil.copy(source, folder)
    elif source.parent.name == "verl":
        shutil.copytree(source, folder)
    else:
        shutil.copytree(source, folder / source.name)


def test_nothing_of_another_run_is_read_with_it(tmp_path):
    """A folder with the files of two frameworks is not taken for one run."""
    for name in ("nemo-rl", "skyrl"):
        shutil.copytree(DUMPS[name], tmp_path / name)
    assert open_log(tmp_path).run["source"] == "import:nemo-rl"
