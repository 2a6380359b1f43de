"""`flatline.Loop`: loops of people's own under the checkup, and what is refused in words."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import flatline
from flatline.diagnosis.checkup import subject_of
from flatline.errors import ConfigError, ModelError
from flatline.hypotheses.base import Level
from flatline.live.loop.agree import refuse_if_other
from flatline.live.loop.leftovers import judge_leftovers
from flatline.live.loop.trainer import LoopTrainer
from flatline.live.protocol import Capability
from flatline.rollout.record import Author
from tests import capability_table
from tests.loops import notebook
from tests.loops.adapted import ADAPTED
from tests.loops.lab import problems
from tests.test_watch import NAMED, adam, policy_of

ENOUGH = 33
"""Hypotheses that a checkup of a loop answers, at least."""


def loop_of(name="notebook", *, defect=False, count=4):
    model, tokenizer = policy_of(name)
    torch.manual_seed(0)
    rows = problems(tokenizer, count)
    return ADAPTED[name](model, tokenizer, adam(model, lr=1e-4), rows, defect=defect)


def state_of(loop):
    held = (loop.model.state_dict(), loop.optimizer.state_dict(), torch.get_rng_state())
    gradients = [weight.grad for weight in loop.model.parameters()]
    return copy.deepcopy((*held, gradients, [m.training for m in loop.model.modules()]))


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("name", ADAPTED)
def test_a_healthy_loop_is_answered_without_alarm_and_left_bit_for_bit(name):
    loop = loop_of(name)
    before = state_of(loop)
    report = flatline.checkup(loop)
    assert [one.text for one in report.alarms] == []
    assert report.tested >= ENOUGH, [f.text for f in report.findings if f.level is Level.UNKNOWN]
    assert same(before, state_of(loop))
    broken = [f.text for f in report.findings if "defect of flatline" in f.text]
    assert broken == []


@pytest.mark.parametrize("name", ("padded", "engine"))
def test_the_defect_of_a_loop_is_named_by_its_checkup(name):
    loop = loop_of(name, defect=True)
    before = state_of(loop)
    report = flatline.checkup(loop)
    assert {one.hypothesis for one in report.causes} == NAMED[name]
    assert report.alarms[0].hypothesis == "H02"
    assert report.tested >= ENOUGH
    assert same(before, state_of(loop))


def test_a_loop_with_a_reference_is_compared_with_it():
    loop = loop_of()

    def sample(prompts):
        return [{**batch, "reference": batch["old"] - 0.25} for batch in loop.sample(prompts)]

    subject = subject_of(replace(loop, sample=sample, settings={}))
    assert subject.batch.rollouts == 32
    gap = subject.reference_gap()
    assert gap.source == "trainer" and gap.gap_T == pytest.approx(0.25, abs=1e-4)


def wrongly(loop, **changes):
    """What a checkup says of an adapter that is not its loop."""
    with pytest.raises(ConfigError, match="are not the loop") as caught:
        subject_of(replace(loop, **changes)).batch  # noqa: B018 -- the batch is what is compared
    return str(caught.value)


def test_an_adapter_that_trains_other_tokens_than_its_loop_is_refused():
    loop = loop_of(defect=True)
    healthy = loop_of()
    said = wrongly(healthy, step=lambda: _step_of(healthy, defect=True))
    assert "has a loss in `loss` and not in `step`" in said
    assert "has a loss in `step` and not in `loss`" in wrongly(
        loop, step=lambda: _step_of(loop, defect=False)
    )


def _step_of(loop, *, defect):
    given = (loop.model, loop.tokenizer, loop.optimizer, loop.prompts)
    silent = SimpleNamespace(rewards=lambda *_, **__: None)
    notebook.train(*given, silent, steps=1, defect=defect)


def test_an_adapter_whose_loss_pushes_the_other_way_is_refused():
    loop = loop_of()
    assert "`loss` weighs tokens differently from `step` (cosine -1.00" in wrongly(
        loop, loss=lambda batch, logps: -notebook.loss_of(batch, logps)
    )


def test_an_adapter_that_scores_otherwise_than_its_loop_is_refused():
    loop = loop_of()
    with pytest.raises(ConfigError, match=r"`logprobs` gives -.* for a token whose log-prob is -"):
        flatline.checkup(replace(loop, logprobs=lambda batch: loop.logprobs(batch) / 2))


def test_rows_that_differ_are_compared_by_their_rules():
    def row(ids, trained):
        known = {
            "prompt_ids": [1, 2],
            "prompt_attended": [1, 1],
            "ids": ids,
            "author": [int(Author.MODEL)] * 4,
        }
        return {**known, "attended": [1] * 4, "trained": trained, "trainer": None, "weight": None}

    own = [row([3, 4, 5, 6], [1, 1, 1, 1])]
    refuse_if_other(own, [row([7, 8, 9, 3], [1, 1, 1, 1])])
    with pytest.raises(ConfigError, match="100% of the sampled tokens have a loss in `step`, 50%"):
        refuse_if_other(own, [row([7, 8, 9, 3], [0, 1, 1, 0])])


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"step": lambda: None}, ConfigError, "its optimizer never stepped"),
        ({"model": nn.Sequential(nn.Linear(2, 2))}, ModelError, "makes logits"),
        ({"settings": {"learning_rat": 1}}, ConfigError, "has no learning_rat"),
        ({"prompts": []}, ConfigError, "needs `prompts`"),
    ],
)
def test_a_loop_that_cannot_be_looked_at_is_refused(changes, error, said):
    with pytest.raises(error, match=said):
        flatline.checkup(replace(loop_of(), **changes))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda batch: {"rewards": batch["rewards"]}, "has no ids, trained, advantages"),
        (lambda batch: {**batch, "trained": batch["trained"][:, 1:]}, "not of log-prob t"),
        (lambda batch: {**batch, "rewards": batch["rewards"].tolist()}, "`rewards` .* is list"),
        (lambda batch: {name: value[:7] for name, value in batch.items()}, "31 rows for 4 prompts"),
    ],
)
def test_batches_that_cannot_be_read_are_refused_in_words(change, said):
    loop = loop_of()

    def sample(prompts):
        kept = ("ids", "trained", "rewards", "advantages")
        found = [{name: batch[name] for name in kept} for batch in loop.sample(prompts)]
        return [change(batch) if at == 0 else batch for at, batch in enumerate(found)]

    with pytest.raises(ConfigError, match=said):
        replace(loop, sample=sample).batches(loop.prompts)


def without_epsilon(monkeypatch, rewards):
    """The first prompt's rewards, and advantages that are divided by their spread alone."""
    sampled = notebook.experience

    def experience(*args, **kwargs):
        batch = sampled(*args, **kwargs)
        if args[2] == loop.prompts[0][0]:
            batch["rewards"] = batch["parts"]["accuracy"] = torch.tensor(rewards)
        paid = batch["rewards"]
        return {**batch, "advantages": (paid - paid.mean()) / paid.std()}

    monkeypatch.setattr(notebook, "experience", experience)
    loop = loop_of()
    return loop


def test_advantages_that_are_no_numbers_are_refused_with_the_group_that_made_them(monkeypatch):
    with pytest.raises(ConfigError) as refused:
        flatline.checkup(without_epsilon(monkeypatch, [1.0] * 8))
    assert "advantages of `sample` are no numbers" in str(refused.value)
    assert "prompt 0, whose rewards are all 1, so that their spread is 0" in str(refused.value)


def test_log_probs_of_another_width_are_refused_in_words():
    loop = loop_of()
    batch = loop.sample(loop.prompts[:1])[0]
    wide = replace(loop, logprobs=lambda batch: torch.zeros(batch["ids"].shape))
    with pytest.raises(ConfigError, match="the log-prob of its token t \\+ 1"):
        wide.scored(batch)


def test_settings_that_nobody_knows_and_no_prompts_are_refused():
    loop = loop_of()
    with pytest.raises(ConfigError, match="has no learning_rat"):
        replace(loop, settings={"learning_rat": 1})
    with pytest.raises(ConfigError, match="needs `prompts`"):
        replace(loop, prompts=[])


def test_every_capability_opens_some_hypothesis():
    opened = capability_table.opened()
    assert all(opened.values())
    assert {"H24", "H26"} <= set(opened[Capability.STEP]) and "H03" in opened[Capability.REFERENCE]


def test_a_loop_that_never_sets_its_gradients_to_zero_is_named():
    def never(step, optimizer):
        zero_grad, optimizer.zero_grad = optimizer.zero_grad, lambda *_, **__: None
        try:
            step()
        finally:
            optimizer.zero_grad = zero_grad

    loop = loop_of()
    broken = replace(loop, step=lambda: never(loop.step, loop.optimizer))
    snapshot = LoopTrainer(broken).snapshot()
    found = judge_leftovers(broken, snapshot)
    assert found.departs and found.stage == "gradient" and "zero_grad" in found.fix
    assert judge_leftovers(loop, snapshot) is None
