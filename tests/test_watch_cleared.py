"""`flatline.watch` and H26: gradients that are cleared before a step uses them."""

import pytest
import torch

import flatline
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.h26_optimizer_not_stepping import OptimizerNotStepping
from tests.test_watch import NobodyWatches
from tests.test_watch_weights import completions, gains, without_spread
from tests.tiny import tiny_model

STEPS, PARTS = 4, 3


class Loop:
    """Three passes for each step; what a loop does around them differs."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = tiny_model(vocab=60, pad_token_id=0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.other = torch.optim.SGD(self.model.parameters(), lr=0.001)

    def train(self, watch, update):
        for step in range(STEPS):
            asked = torch.randint(16, 60, (4, 6)).repeat_interleave(6, dim=0)
            ids = completions(self.model, asked)
            rewards = ids[:, 6:].sum(1) * 37 % 97 / 97
            watch.rewards(rewards.tolist())
            advantage = without_spread(rewards)

            def backward(rows, ids=ids, advantage=advantage):
                gain = gains(self.model, ids[rows], mean=True)
                (-(advantage[rows] * gain).mean() / PARTS).backward()

            update(self, backward, torch.arange(len(ids)).chunk(PARTS), step)

    def forget(self):
        for weight in self.model.parameters():
            weight.grad = None


def cleared_by(clear):
    def update(loop, backward, parts, step):
        for rows in parts:
            clear(loop)
            backward(rows)
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)
        loop.optimizer.step()

    return update


FAULTY = {
    "zero_grad": cleared_by(lambda loop: loop.optimizer.zero_grad()),
    "of the model": cleared_by(lambda loop: loop.model.zero_grad()),
    "by hand": cleared_by(Loop.forget),
}


def added_up(loop, backward, parts, step):
    loop.optimizer.zero_grad(set_to_none=False)
    for rows in parts:
        backward(rows)
    loop.optimizer.step()


def cleared_after(loop, backward, parts, step):
    for rows in parts:
        backward(rows)
    loop.optimizer.step()
    loop.model.zero_grad()


def a_step_each(loop, backward, parts, step):
    for rows in parts:
        loop.optimizer.zero_grad()
        backward(rows)
        loop.optimizer.step()


def skipped_once(loop, backward, parts, step):
    added_up(loop, backward, parts[:1] if step else parts, step)
    if step == 1:
        backward(parts[1])  # as a scaler that saw an overflow: no step follows


def same_rows_again(loop, backward, parts, step):
    for rows in parts:
        backward(rows)
    loop.optimizer.zero_grad()
    for rows in parts:
        backward(rows)
    loop.optimizer.step()
    loop.optimizer.zero_grad()


def gathered_elsewhere(loop, backward, parts, step):
    held = [torch.zeros_like(weight) for weight in loop.model.parameters()]
    for rows in parts:
        loop.optimizer.zero_grad()
        backward(rows)
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)
        for total, weight in zip(held, loop.model.parameters(), strict=True):
            total += weight.grad
    for total, weight in zip(held, loop.model.parameters(), strict=True):
        weight.grad.copy_(total)
    loop.optimizer.step()


def stepped_by_another(loop, backward, parts, step):
    for rows, optimizer in zip(parts[:2], (loop.other, loop.optimizer), strict=True):
        optimizer.zero_grad()
        backward(rows)
        optimizer.step()


HEALTHY = {
    update.__name__: update
    for update in (
        *(added_up, cleared_after, a_step_each, skipped_once),
        *(same_rows_again, gathered_elsewhere, stepped_by_another),
    )
}


def watched(folder, update):
    loop = Loop()
    with flatline.watch(loop.model, loop.optimizer, folder) as watch:
        loop.train(watch, update)
    return loop.model, flatline.Trace.open(folder)


@pytest.mark.parametrize("update", FAULTY.values(), ids=FAULTY)
def test_gradients_that_are_cleared_between_the_passes_of_a_step_are_a_fault_and_weights_stay(
    update, tmp_path
):
    model, trace = watched(tmp_path, update)
    found = OptimizerNotStepping().sign(trace)
    assert found.level is Level.FAULT
    assert "4 of 4 steps" in found.text and "67%" in found.text
    alone = Loop()
    alone.train(NobodyWatches(), update)
    pairs = zip(model.parameters(), alone.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("update", HEALTHY.values(), ids=HEALTHY)
def test_gradients_that_a_step_uses_or_that_are_cleared_on_purpose_are_silent(update, tmp_path):
    _, trace = watched(tmp_path, update)
    assert OptimizerNotStepping().sign(trace).level not in ALARMS
