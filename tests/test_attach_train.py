"""`flatline train` records itself through the same line as anyone's script."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import flatline
from flatline.config import RunConfig
from flatline.rollout.record import Author
from flatline.training.run import train

torch.set_num_threads(1)

CONFIG = RunConfig(
    datasets="lab,,train[:24]",
    eval_datasets="lab,,validation[:6]",
    batch_size=16,
    num_generations=4,
    max_steps=3,
    eval_steps=2,
    max_new_tokens=64,
    kl_beta=0.04,
    save_steps=2,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    result = train(replace(CONFIG, output_dir=str(folder)))
    return result, flatline.Trace.open(folder)


def test_held_out_reward_is_in_the_row_of_its_step_from_step_0_on(run):
    result, trace = run
    assert trace.steps["step"].tolist() == [0, 1, 2, 3]
    found = trace.steps["heldout_reward"]
    assert np.isnan(found[1])
    assert found[[0, 2, 3]].tolist() == [score.reward.value for score in result.scores]


def test_a_rollout_says_what_its_problem_needed_and_was_shown(run):
    _, trace = run
    rollouts = trace.rollouts
    assert (rollouts["hops"] >= 2).all()
    assert (rollouts["supporting"] >= rollouts["supporting_seen"]).all()
    recall = rollouts["supporting_seen"] / rollouts["supporting"]
    assert np.allclose(recall, trace.parts()["retrieval_recall"])
    right = trace.parts()["exact_match"] == 1
    pairs = zip(rollouts["gold"][right], rollouts["completion"][right], strict=True)
    assert all(gold.lower() in said.lower() for gold, said in pairs)


def test_authors_are_known_and_only_the_models_tokens_are_trained(run):
    _, trace = run
    tokens = trace.tokens()
    assert {Author.MODEL, Author.TOOL, Author.TEMPLATE} == set(tokens.author)
    assert ((tokens.author == Author.MODEL) == (tokens.trained == 1)).all()
    model = tokens.author == Author.MODEL
    assert np.abs(tokens.sampler - tokens.trainer)[model].max() < 1e-4


def test_a_sound_run_trains_the_very_ids_that_were_sampled(run):
    _, trace = run
    assert set(trace.rollouts["as_sampled"]) == {1}
    assert trace.tokens().divergences == []


def test_what_was_sampled_is_kept_where_other_ids_are_trained(tmp_path):
    short = replace(CONFIG, max_steps=1, fault="retokenised")
    train(replace(short, output_dir=str(tmp_path)))
    trace = flatline.Trace.open(tmp_path)
    assert set(trace.rollouts["as_sampled"]) == {0}
    found = trace.tokens().divergences
    assert len(found) == len(trace.rollouts)
    assert not any(one.in_prompt for one in found)
    one = found[0]
    assert trace.decode(one.sampled).startswith("<tool_call>")
    assert one.sampled[one.position] != one.trained[one.position]
    assert "<" not in trace.text(one.sampled[one.position]), "sampled ids have their text too"


def test_the_run_file_has_what_was_asked_for_and_what_is_done(run):
    _, trace = run
    assert trace.run["requested"]["kl_beta"] == 0.04
    assert trace.run["effective"]["sizes"]["completions_per_step"] == 16
    assert trace.run["trl"]["beta"] == 0.04
    assert trace.run["source"] == "attach" and trace.run["fault"] is None
    assert trace.settings["engine"] == "embedded" and trace.settings["beta"] == 0.04
    assert trace.settings["prompts_per_step"] == 4 and trace.settings["dataset_size"] == 24


def test_what_is_logged_is_what_is_recorded(run):
    result, trace = run
    logged = [line for line in result.log if "grad_norm" in line]
    for name in ("reward", "kl", "grad_norm", "learning_rate", "entropy", "loss"):
        values = [line[name] for line in logged]
        assert np.allclose(trace.steps[name][1:], values, rtol=1e-4, atol=1e-9), name
    gaps = [line["debug/logprob_gap_max"] for line in logged]
    assert np.allclose(trace.steps["logprob_gap_max"][1:], gaps)


def test_a_resumed_run_goes_on_in_the_same_trace(run):
    result, before = run
    again = replace(CONFIG, output_dir=str(result.output_dir), max_steps=4)
    train(replace(again, resume_from_checkpoint="last"))
    trace = flatline.Trace.open(result.output_dir)
    assert trace.steps["step"].tolist() == [0, 1, 2, 3, 4]
    assert len(trace.rollouts) == 4 * 16
    # The steps after the checkpoint were trained again, on the same rollouts.
    step = trace.rollouts["step"] == 3
    same = before.rollouts["completion"][before.rollouts["step"] == 3]
    assert sorted(trace.rollouts["completion"][step]) == sorted(same)
