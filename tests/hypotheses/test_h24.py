"""H24 learning-rate."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, run_facts

from flatline.hypotheses.base import Level
from flatline.hypotheses.h24_learning_rate import LearningRate
from flatline.live.trl.measure.order import planned_steps
from flatline.trace import Trace

H = LearningRate()


def run(steps=30, gain=0.0, change=lambda row: {}, **settings):
    """A run whose rows of `steps` are changed."""
    rows = healthy_rows(steps=steps, gain=gain)
    rows["steps"] = [{**row, **(change(row) if row["step"] else {})} for row in rows["steps"]]
    return Trace.from_rows(run=run_facts(**settings), **rows)


FITTING = SimpleNamespace(kl=2e-3, learning_rate=1e-3)


def subject(
    kl, *, low=None, rate=1e-5, steps=50, fitting=FITTING, epochs=None, tokens=8, **settings
):
    low = kl if low is None else low
    step = SimpleNamespace(kl=kl, kl_at_least=low, learning_rate=rate, tokens=np.array([tokens]))
    told = {"max_steps": steps, **settings}
    return SimpleNamespace(
        one_step=lambda: step,
        fitting_step=lambda: fitting,
        settings=told,
        planned_steps=planned_steps(told, epochs),
    )


def test_without_kl_unchanged_entropy_and_length_are_suspected():
    noise = np.random.default_rng(0)
    still = run(change=lambda row: {"kl": None, "entropy": 1 + noise.normal(0, 0.02)})
    assert H.sign(still).level is Level.SUSPECT


def test_a_reward_that_falls_was_moved_by_something():
    noise = np.random.default_rng(0)
    falls = run(gain=-0.3, change=lambda row: {"kl": None, "entropy": 1 + noise.normal(0, 0.02)})
    assert H.sign(falls).level is not Level.SUSPECT


def test_a_policy_that_breaks_after_its_first_step_is_suspected():
    rows = healthy_rows(steps=12)
    for row in rows["rollouts"]:
        row["reward"] = row["reward"] if row["step"] == 1 else 0.0
    for row in rows["steps"][2:]:
        row["entropy"] = 5.0
    assert H.sign(Trace.from_rows(run=run_facts(), **rows)).level is Level.SUSPECT


@pytest.mark.parametrize(("kl", "level"), [
    (1e-9, Level.SUSPECT), (1e-4, Level.OK), (1e-2, Level.OK), (0.58, Level.NOTE),
    (5.0, Level.SUSPECT), (float("inf"), Level.SUSPECT), (float("nan"), Level.SUSPECT),
])  # fmt: skip
def test_the_kl_of_one_step_says_whether_the_rate_fits(kl, level):
    found = H.probe(subject(kl))
    assert found.level is level
    if level is Level.SUSPECT:
        assert found.fix == "Set {learning_rate} to 0.001."
        assert "At 0.001 one step has 0.002." in found.text
    assert "destroyed" not in found.text


@pytest.mark.parametrize(
    ("low", "level"), [(-3.6, Level.UNKNOWN), (0.5, Level.NOTE), (2.7, Level.SUSPECT)]
)
def test_a_step_is_too_large_only_if_the_interval_of_its_kl_says_so(low, level):
    found = H.probe(subject(3.3, low=low, tokens=486))
    assert found.level is level
    assert ("486 tokens" in found.text) == (level is Level.UNKNOWN)


def test_a_step_of_uncertain_size_hides_no_warm_up_that_never_ends():
    found = H.probe(subject(3.3, low=-3.6, warmup_steps=5000, lr_scheduler_type="linear"))
    assert found.level is Level.SUSPECT and "warm-up" in found.headline


def test_a_rate_that_was_not_tried_is_not_named():
    for kl in (1e-9, 5.0):
        assert not re.search(r"to [\d.e-]+\.$", H.probe(subject(kl, fitting=None)).fix)


def test_epochs_are_counted_in_steps():
    epochs = {"steps": -1, "epochs": 2.0, "dataset_size": 8000, "num_iterations": 1}
    assert H.probe(subject(5e-6, prompts_per_step=8, **epochs)).level is Level.OK
    assert H.probe(subject(2e-6, prompts_per_step=800, **epochs)).level is Level.SUSPECT


def test_a_kl_that_is_never_a_number_leaves_it_to_the_behaviour():
    noise = np.random.default_rng(0)
    lost = run(change=lambda row: {"kl": np.nan, "entropy": 1 + noise.normal(0, 0.02)})
    assert H.sign(lost).level is Level.SUSPECT


def test_a_rate_that_fits_is_told_from_one_step():
    fits = subject(1e-3)
    del fits.fitting_step
    assert H.probe(fits).level is Level.OK


def test_a_run_that_ends_in_its_warm_up_is_suspected():
    warming = {"warmup_steps": 5000, "lr_scheduler_type": "linear"}
    recorded, live = run(steps=30, max_steps=30, **warming), subject(2e-3, **warming)
    for found in (H.sign(recorded), H.probe(live)):
        assert found.level is Level.SUSPECT
        assert "warm-up" in found.headline


@pytest.mark.parametrize(("warmup", "schedule"), [
    (40, "linear"), (5000, "constant"), (5000, "given"), (5000, None), (0, "cosine"),
])  # fmt: skip
def test_a_warm_up_that_ends_or_is_not_used_is_fine(warmup, schedule):
    found = H.probe(subject(2e-3, warmup_steps=warmup, lr_scheduler_type=schedule))
    assert found.level is Level.OK


test_levels_of_the_probe = levels_of(H.probe, {
    "a step on no token is unknown and no destruction": ("unknown",
        lambda: subject(float("nan"), tokens=0)),
    "a long run may take small steps": ("suspect", lambda: subject(1e-6, steps=20)),
    "a long run may take small steps (3)": ("ok", lambda: subject(1e-5, steps=1000)),
    "a long run may take small steps: not far from enough": ("note",
        lambda: subject(1e-5, steps=20)),
    "a run whose steps are not known is not called too short": ("unknown",
        lambda: subject(5e-6, steps=-1, epochs=3.0)),
    "a run whose steps are not known is not called too short (2)": ("ok",
        lambda: subject(0.005, steps=-1)),
    "a step that moves nothing is left to others": ("unknown", lambda: subject(0.0)),
})  # fmt: skip


test_levels_of_the_sign = levels_of(H.sign, {
    "a kl that stays at zero while the reward does not rise": ("suspect",
        lambda: run(change=lambda row: {"kl": 1e-6})),
    "a run whose entropy falls has moved": ("ok",
        lambda: run(change=lambda row: {"kl": None, "entropy": 1 - 0.02 * row["step"]})),
    "few steps and warm up say nothing": ("unknown", lambda: run(steps=10)),
    "few steps and warm up say nothing (2)": ("unknown",
        lambda: run(change=lambda row: {"kl": 1e-6,
            "learning_rate": 1e-9 if row["step"] < 30 else 1})),
    "a trainer that leaves the sampler behind moves although nothing is seen of it": ("ok",
        lambda: run(change=lambda row: {"kl": None, "entropy": 1.0,
            "logprob_gap": 0.01 * row["step"]})),
    "a fall with unchanged behaviour is no matter of the rate": ("no suspect",
        lambda: run(gain=-0.35, change=lambda row: {"kl": 0.001, "entropy": 1.0})),
})  # fmt: skip
