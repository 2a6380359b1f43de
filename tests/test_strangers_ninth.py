"""What the ninth round of scripts that strangers could have written showed."""

import copy
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.nn.functional import log_softmax
from types import SimpleNamespace

import flatline
from flatline.hypotheses.answers import same_answer
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.gold_fit import foreign_gold
from flatline.hypotheses.h03_kl_divergence import KlDivergence
from flatline.hypotheses.h39_reward_parser import RewardParser
from flatline.live.measure.played import Generated, Played
from flatline.live.trl.departure.asked_again import calls
from flatline.live.trl.departure.data import Heard
from flatline.live.trl.departure.exchanged import judge_exchanged
from flatline.live.trl.departure.unearned import judge_shared
from flatline.live.trl.recorder.reference import Anchor
from flatline.live.trl.recorder.seen_gold import FitOfGold, SeenGold
from flatline.trace import Trace
from tests.tiny import tiny_model
from tests.traces import run_facts

torch.set_num_threads(1)
WORDS, END, ROWS, PROMPT, LIMIT = 32, 1, 64, 4, 6


def model_of(seed=0):
    torch.manual_seed(seed)
    model = tiny_model(vocab=WORDS, eos_token_id=END, pad_token_id=0, tie_word_embeddings=False)
    with torch.no_grad():
        logits = model(input_ids=torch.randint(4, WORDS, (8, PROMPT))).logits
        model.get_output_embeddings().weight *= 2 / logits.std()  # it prefers something
    return model


@torch.no_grad()
def drawn(model, temperature=1.0, keeps=WORDS):
    rows = torch.randint(4, WORDS, (ROWS // 8, PROMPT)).repeat_interleave(8, 0)
    for _ in range(LIMIT):
        logits = model(input_ids=rows).logits[:, -1] / temperature
        logits[:, END] = -torch.inf
        least = logits.topk(keeps).values[:, -1:]
        chances = logits.masked_fill(logits < least, -torch.inf).softmax(-1)
        rows = torch.cat([rows, torch.multinomial(chances, 1)], 1)
    return rows


def loop(folder, *, sampled_at=1.0, scored_at=1.0, keeps=WORDS, shift=1, clears=True, sampler=None, model=None):
    """REINFORCE with the rewards of the rows' places; returns what is found."""
    model = model or model_of()
    optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=1e-3)
    torch.manual_seed(1)
    with flatline.watch(model, optimizer, folder) as watch:
        for _ in range(12):
            rows = drawn(sampler or model, sampled_at, keeps)
            reward = torch.rand(ROWS)
            watch.rewards(reward.tolist())
            logits = model(input_ids=rows).logits / scored_at
            logits = logits[:, PROMPT - shift : rows.shape[1] - shift]
            logp = log_softmax(logits, -1).gather(2, rows[:, PROMPT:, None])[..., 0]
            if clears:
                optimizer.zero_grad()
            gain = (reward.view(-1, 8) - reward.view(-1, 8).mean(1, keepdim=True)).flatten()
            (-(logp.sum(1) * gain).mean()).backward()
            optimizer.step()
    found = flatline.diagnose(flatline.Trace.open(folder)).findings
    return {one.hypothesis: one for one in found}


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({}, False),
        ({"sampled_at": 1.7}, True),
        ({"sampled_at": 0.5}, True),
        ({"scored_at": 1.7}, True),
        ({"sampled_at": 1.7, "scored_at": 1.7}, False),
        ({"keeps": 12}, False),
    ],
)
def test_a_loop_that_draws_at_another_temperature_than_it_scores_is_named(tmp_path, how, named):
    found = loop(tmp_path, **how)["H21"]
    assert (found.level is Level.SUSPECT) is named, found.text
    assert not named or "as at a temperature of about" in found.text


def test_logits_that_are_not_shifted_are_a_fault_of_their_own_and_no_wrong_mask(tmp_path):
    found = loop(tmp_path, shift=0)
    assert found["H54"].level is Level.FAULT and "off by one" in found["H54"].headline
    assert "H02" in found["H54"].explains


def test_gradients_that_are_never_cleared_are_a_fault(tmp_path):
    assert "never cleared" in loop(tmp_path / "kept", clears=False)["H26"].headline
    assert loop(tmp_path / "cleared")["H26"].level is Level.OK


def test_a_copy_without_the_adapter_that_samples_and_never_gets_it_is_named(tmp_path):
    base = model_of()
    engine = copy.deepcopy(base)
    policy = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    found = loop(tmp_path, model=policy, sampler=engine)["H06"]
    assert found.level is Level.SUSPECT and "not one of its weights has changed" in found.text
