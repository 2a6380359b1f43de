"""`flatline.watch` and H53: what the weights of rows in a loss tell of its advantages."""

import pytest
import torch

import flatline
from flatline.hypotheses.base import ALARMS, Level
from tests.test_trl_breadth import told
from tests.tiny import tiny_model

PROMPTS, GROUP, STEPS = 4, 6, 5
ENDS = [1, 2, 3]
"""Ids that end a completion: often enough for lengths to differ, too rarely for equal rows."""


def completions(model, prompts):
    return model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=0,
        max_new_tokens=5,
    )


def gains(model, ids, *, mean):
    """What a row's log-probs come to: their mean, or their sum."""
    logits = model(input_ids=ids).logits[:, 5:-1]
    found = logits.log_softmax(-1).gather(2, ids[:, 6:, None])[..., 0]
    ended = torch.isin(ids[:, 6:], torch.tensor(ENDS)).int()
    mask = ended.cumsum(1) - ended == 0
    return (found * mask).sum(1) / (mask.sum(1) if mean else 1)


def scaled(rewards, dim):
    return (rewards - rewards.mean(dim, keepdim=True)) / (rewards.std(dim, keepdim=True) + 1e-4)


def trained(folder, objective, *, repeats=False, prompts=PROMPTS, group=GROUP, pay=None, mean=True):
    """The run of a loop whose loss is `objective(rewards, gains)`; its rewards are drawn."""
    torch.manual_seed(0)
    model = tiny_model(vocab=60, eos_token_id=ENDS, pad_token_id=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    with flatline.watch(model, optimizer, folder) as watch:
        for _ in range(STEPS):
            asked = torch.randint(16, 60, (prompts, 6))
            asked = asked.repeat(group, 1) if repeats else asked.repeat_interleave(group, dim=0)
            ids = completions(model, asked)
            easy = torch.rand(prompts)
            easy = easy.repeat(group) if repeats else easy.repeat_interleave(group)
            drawn = ids[:, 6:].sum(1) * 37 % 97 / 97  # equal completions are paid alike
            rewards = (drawn < easy).float() if pay is None else pay(len(ids))
            watch.rewards(rewards.tolist())
            optimizer.zero_grad()
            objective(rewards, lambda rows, ids=ids: gains(model, ids[rows], mean=mean)).backward()
            optimizer.step()
    return flatline.Trace.open(folder)


def everything(rewards):
    return torch.arange(len(rewards))


def weighed_by(advantages):
    return lambda rewards, gain: -(advantages(rewards) * gain(everything(rewards))).mean()


def shuffled(advantages):
    def objective(rewards, gain):
        order = torch.randperm(len(rewards))
        return -(advantages(rewards)[order] * gain(order)).mean()

    return objective


def across_prompts(rewards):
    return scaled(rewards.view(GROUP, -1), 0).flatten()


def over_the_wrong_dimension(rewards):
    grouped = rewards.view(-1, GROUP)
    return (grouped - grouped.mean(0)).flatten()


def h53(trace):
    return told(trace, "H53")


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("advantages", [across_prompts, over_the_wrong_dimension])
def test_a_baseline_over_rows_of_other_prompts_is_a_fault(advantages, mean, tmp_path):
    found = h53(trained(tmp_path, weighed_by(advantages), mean=mean))
    assert found.level is Level.FAULT
    apart = PROMPTS if advantages is across_prompts else GROUP
    assert f"{apart} apart" in found.text and "`(-1, 6)`" in found.fix


def test_neighbours_where_rows_of_a_prompt_are_not_neighbours_are_a_fault(tmp_path):
    own = weighed_by(lambda rewards: scaled(rewards.view(-1, GROUP), 1).flatten())
    found = h53(trained(tmp_path, own, repeats=True))
    assert found.level is Level.FAULT
    assert "6 neighbours" in found.text and "`(6, -1)`" in found.fix


def outer_product(rewards, gain):
    advantage = scaled(rewards.view(-1, GROUP), 1).reshape(-1, 1)
    return -(advantage * gain(everything(rewards))).mean()


def test_one_weight_for_every_row_whatever_it_earned_is_a_fault(tmp_path):
    trace = trained(tmp_path, outer_product)
    found = h53(trace)
    assert found.level is Level.FAULT and "(N, 1) times" in found.fix
    assert flatline.diagnose(trace).causes[0].hypothesis == "H53"


def left_one_out(rewards):
    grouped = rewards.view(-1, GROUP)
    return (grouped - (grouped.sum(1, keepdim=True) - grouped) / (GROUP - 1)).flatten()


def without_spread(rewards):
    grouped = rewards.view(-1, GROUP)
    return (grouped - grouped.mean(1, keepdim=True)).flatten()


class Running:
    """A baseline that remembers."""

    def __init__(self):
        self.value = 0.3

    def __call__(self, rewards):
        self.value = 0.9 * self.value + 0.1 * float(rewards.mean())
        return rewards - self.value


HEALTHY = {
    "of the group": weighed_by(lambda rewards: scaled(rewards.view(-1, GROUP), 1).flatten()),
    "without a spread": weighed_by(without_spread),
    "left one out": weighed_by(left_one_out),
    "normalised over the batch": weighed_by(lambda rewards: scaled(rewards, 0)),
    "running": weighed_by(Running()),
    "a critic of each row": weighed_by(lambda rewards: rewards - torch.rand(len(rewards))),
    "in another order": shuffled(lambda rewards: scaled(rewards.view(-1, GROUP), 1).flatten()),
    "none": weighed_by(lambda rewards: rewards),
    "scaled down": weighed_by(lambda rewards: 1e-8 * scaled(rewards.view(-1, GROUP), 1).flatten()),
    "the best rows alone": lambda rewards, gain: -gain(torch.nonzero(rewards)[:, 0]).mean(),
    "imitation": lambda rewards, gain: -gain(everything(rewards)).mean(),
}


@pytest.mark.parametrize("objective", HEALTHY.values(), ids=HEALTHY)
def test_advantages_with_another_baseline_are_silent(objective, tmp_path):
    assert h53(trained(tmp_path, objective)).level not in ALARMS


LAYOUTS = {
    "groups of one row": (lambda rewards: scaled(rewards, 0), {"prompts": 24, "group": 1}),
    "one prompt": (lambda rewards: scaled(rewards, 0), {"prompts": 1, "group": 24}),
    "rows laid out by repeat": (across_prompts, {"repeats": True}),
    "equal rewards": (lambda rewards: rewards - rewards.mean() + 1e-9, {"pay": torch.ones}),
}


@pytest.mark.parametrize(("advantages", "layout"), LAYOUTS.values(), ids=LAYOUTS)
def test_rows_whose_baseline_is_their_own_are_silent_however_they_lie(advantages, layout, tmp_path):
    assert h53(trained(tmp_path, weighed_by(advantages), **layout)).level not in ALARMS
