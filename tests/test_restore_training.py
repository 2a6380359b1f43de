"""A checkup before a training does not change the training, wherever its state is kept."""

import random

import numpy as np
import pytest
import torch
from trl import RLOOConfig, RLOOTrainer

import flatline
from tests.restored import STATEFUL, Training, of_closure
from tests.test_loop import loop_of

torch.set_num_threads(1)


def end_of(trainer, own):
    """All that the training comes to: weights, what the user's things hold, random numbers."""
    trainer.train()
    weights = [weight.detach().clone() for weight in trainer.model.parameters()]
    drawn = (random.random(), np.random.rand(), float(torch.rand(())))
    return weights, own(), drawn


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("kept", STATEFUL)
def test_a_training_ends_the_same_after_a_checkup_whatever_keeps_its_state(kept, tmp_path):
    weights, own, drawn = end_of(*STATEFUL[kept].build(tmp_path))
    trainer, state = STATEFUL[kept].build(tmp_path)
    assert flatline.checkup(trainer).tested > 30
    after = end_of(trainer, state)
    assert [place for place in own if not same(own[place], after[1][place])] == []
    assert same(weights, after[0]), "weights"
    assert same(drawn, after[2]), "random numbers"


def test_an_rloo_training_ends_the_same_after_a_checkup(tmp_path):
    build, kind = Training(of_closure).build, (RLOOTrainer, RLOOConfig)
    plain = end_of(*build(tmp_path, kind=kind))
    trainer, own = build(tmp_path, kind=kind)
    flatline.checkup(trainer)
    assert same(plain, end_of(trainer, own))


def stateful_loop():
    """A loop whose sampler counts, and halves its advantages every second time."""
    from dataclasses import replace

    loop, counted = loop_of(), {"times": 0, "means": [torch.zeros(())]}

    def sample(prompts):
        found = loop.sample(prompts)
        counted["times"] += 1
        for batch in [found] if isinstance(found, dict) else found:
            counted["means"][0].lerp_(batch["rewards"].mean(), 0.5)
            batch["advantages"] = batch["advantages"] / counted["times"]
        return found

    def step():
        loop.optimizer.zero_grad()
        for batch in whole.batches(whole.prompts):
            whole.loss(batch, whole.scored(batch)).backward()
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.optimizer.step()

    whole = replace(loop, sample=sample, step=step)
    return whole, counted


def test_a_loop_whose_sampler_counts_goes_on_as_if_nobody_had_looked():
    ends = []
    for looked_at in (False, True):
        loop, counted = stateful_loop()
        if looked_at:
            flatline.checkup(loop, hypotheses=None)
        torch.manual_seed(1)
        loop.step()
        ends.append(([w.detach().clone() for w in loop.model.parameters()], list(counted.items())))
    assert same(*ends)
