"""Metrics in the log of a live trainer beside what was recorded: a wrong one tells, no other."""

from types import MethodType

import numpy as np
import pytest
from trl import RLOOConfig, RLOOTrainer

from flatline.hypotheses.base import Level
from flatline.hypotheses.h48_logs_lie import LogsLie
from flatline.hypotheses.logged import logged_beside
from flatline.live.trl.recorder.readings import Readings
from tests.test_attach import letters, recorded, trainer_of

H = LogsLie()
STEPS = 4
OF_TOKENS = {"clip_ratio/region_mean", "entropy"}
OF_LENGTHS = {f"completions/{one}" for one in ("mean_length", "min_length", "max_length")}
OF_LENGTHS |= {"completions/clipped_ratio"}
OF_REWARDS = {"reward_std", "frac_reward_zero_std"}
PAID = {"rewards/letters/mean", "rewards/length/mean"}
ALL = OF_TOKENS | OF_LENGTHS | OF_REWARDS | PAID
TWICE, SPLIT = {"num_iterations": 2}, {"gradient_accumulation_steps": 2}
HEALTHY = {
    "two passes and a KL": (
        TWICE | {"beta": 0.1, "loss_type": "grpo", "epsilon": 0.01}, ALL | {"kl"}),
    "a corrected KL": (TWICE | {"beta": 0.1, "use_bias_correction_kl": True}, ALL | {"kl"}),
    "a ratio of the sequence": (
        TWICE | {"loss_type": "grpo", "importance_sampling_level": "sequence"}, ALL),
    "two generations a step": (
        SPLIT | {"steps_per_generation": 1},
        OF_TOKENS | PAID | {"completions/mean_length", "completions/clipped_ratio"}),
    "two steps a generation": (SPLIT | {"steps_per_generation": 4}, ALL),
    "cut completions without a loss": (
        SPLIT | {"mask_truncated_completions": True}, OF_TOKENS | OF_REWARDS | PAID),
    "half precision": ({"bf16": True, "beta": 0.1}, ALL),
    "scaled by the batch": ({"scale_rewards": "batch"}, OF_TOKENS | OF_LENGTHS | PAID),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 5.0}, OF_LENGTHS | {"entropy"} | PAID),
}  # fmt: skip


def off(found):
    """What was logged otherwise than it was recorded."""
    return {one.name: one.off.max() for one in found if len(one.off) and one.off.max() > 0}


@pytest.mark.parametrize("setup", HEALTHY)
def test_what_a_sound_trainer_logs_is_what_was_recorded(tmp_path, setup):
    changes, names = HEALTHY[setup]
    trace = recorded(trainer_of(tmp_path, max_steps=STEPS, learning_rate=1e-3, **changes))
    found = list(logged_beside(trace))
    assert {one.name for one in found} >= names, "else nothing was compared"
    assert off(found) == {}
    assert H.sign(trace).level is Level.OK


def test_rloo_logs_what_was_recorded(tmp_path):
    grpo = trainer_of(tmp_path)
    trainer = RLOOTrainer(
        model=grpo.model,
        processing_class=grpo.processing_class,
        reward_funcs=[letters],
        args=RLOOConfig(
            output_dir=str(tmp_path / "rloo"),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            num_generations=4,
            num_iterations=2,
            max_completion_length=12,
            beta=0.0,
            learning_rate=1e-3,
            logging_steps=1,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=grpo.train_dataset,
    )
    trace = recorded(trainer)
    found = list(logged_beside(trace))
    assert {one.name for one in found} >= OF_TOKENS | OF_LENGTHS
    assert off(found) == {}


@pytest.mark.parametrize(
    "name",
    ["clip_ratio/region_mean", "kl", "entropy", "completions/mean_length", "reward_std"],
)
def test_a_metric_that_is_logged_wrongly_is_named(tmp_path, name):
    trainer = trainer_of(
        tmp_path, max_steps=6, num_iterations=2, beta=0.1, epsilon=0.01, learning_rate=1e-2
    )

    def log(self, logs, *args):
        """As the trainer's own, with one number of its metrics changed."""
        own = self._metrics["train"].get(name)
        if own:
            self._metrics["train"][name] = [0.3 + value / 2 for value in own]
        return type(self).log(self, logs, *args)

    trainer.log = MethodType(log, trainer)
    found = H.sign(recorded(trainer))
    assert found.level is Level.SUSPECT
    assert f"logged `{name}` is not that of the recorded step" in found.text
    assert found.evidence[0].step is not None


def test_a_trainer_that_answers_itself_and_others_is_left_alone(tmp_path):
    trace = recorded(trainer_of(tmp_path, max_steps=STEPS))
    trace.run["settings"]["tools"] = 2
    assert {one.name for one in logged_beside(trace)} == PAID


def test_honest_means_lie_between_the_least_and_the_most():
    """Two passes: completions of 1 and 3 tokens with means 1 and 0; one of 2 tokens with mean 1,
    beside one without a trained token."""
    readings = Readings()
    readings.add(np.array([1.0, 0, 0, 0]), np.array([0, 1, 1, 1]), 2)
    readings.add(np.array([1.0, 1.0]), np.array([0, 0]), 2)
    by_token, by_row, by_all = 3 / 6, 2 / 3, 2 / 4
    by_token_and_pass, by_row_and_pass, by_all_and_pass = (1 / 4 + 1) / 2, (1 / 2 + 1) / 2, 1 / 2
    means = (by_token, by_row, by_all, by_token_and_pass, by_row_and_pass, by_all_and_pass)
    assert readings.least_and_most() == (min(means), max(means))


def test_passes_without_a_trained_token_say_nothing():
    readings = Readings()
    readings.add(np.zeros(0), np.zeros(0, dtype=int), 2)
    assert np.isnan(readings.least_and_most()).all()
