"""What the eighth round of scripts that strangers could have written showed."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import GenerationConfig

import flatline
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.h02_token_masking import TokenMasking
from flatline.live.measure.played import Generated, Played
from flatline.live.trl.departure.data import Heard
from flatline.live.trl.departure.unearned import judge_reset
from flatline.live.trl.sampler import _bending
from tests.hypotheses.edited import edited
from tests.hypotheses.test_h02 import invert
from tests.test_strangers_in_files import leaked
from tests.test_trl_breadth import asked, told, trainer_in

torch.set_num_threads(1)


def holds(text, tokens):
    return any(token in text for token in tokens)


@pytest.mark.parametrize(("off", "level"), [(-0.005, Level.FAULT), (-1e-7, Level.OK)])
def test_an_inverted_mask_is_seen_although_what_the_environment_writes_is_easy_to_guess(off, level):
    def easy(row):
        invert(row)
        trained = np.asarray(row["trained"]) == 1
        row["sampler"] = np.where(trained, 0.0, row["sampler"])
        row["trainer"] = np.where(trained, off, row["sampler"])

    found = TokenMasking().sign(edited(easy))
    assert found.level is level, found.text


def test_the_least_length_that_transformers_makes_of_another_is_nobodys_choice():
    config = GenerationConfig(min_new_tokens=6, min_length=11)
    asked = SimpleNamespace(generation_kwargs={"min_new_tokens": 6}, temperature=1.0)
    assert _bending(config, asked) == ({"min_new_tokens": 6.0}, [])
    asked.generation_kwargs = None
    assert _bending(GenerationConfig(min_length=11), asked)[1] == ["min_length"]


PAIRS = [(f"{a} {b} is", "odd" if a + b & 1 else "even") for a in range(4) for b in range(10, 14)]


def test_an_example_in_the_line_of_the_question_may_be_the_question_itself():
    assert "16 of 16 prompts" in leaked([(f"{q} {a} ; {q}", a) for q, a in PAIRS]).text


def test_examples_in_the_line_of_a_question_that_are_others_leak_nothing():
    beside = [*PAIRS[1:], PAIRS[0]]
    both = zip(PAIRS, beside, strict=True)
    assert leaked([(f"{p} {b} ; {q}", a) for (q, a), (p, b) in both]) is None
    assert leaked([(f"{q} of {a} ; {q}", a) for q, a in PAIRS]) is None
    assert leaked([(q, a) for q, a in PAIRS]) is None


def marked(tmp_path, wants):
    """Many tokens are special here, and left out of what reward functions are given."""
    trainer = trainer_in(tmp_path, stops=[0])
    tokens = [f"<{at}>" for at in range(200)]
    trainer.processing_class.add_special_tokens({"additional_special_tokens": tokens})
    trainer.model.resize_token_embeddings(len(trainer.processing_class))
    trainer.reward_funcs = [lambda completions, **_: [wants(text, tokens) for text in completions]]
    trainer.reward_func_names = ["wants"]
    return trainer


@pytest.mark.parametrize(
    ("wants", "named"),
    [
        (lambda text, tokens: float(holds(text, tokens)), True),
        (lambda text, tokens: float(len(text) > 1 or holds(text, tokens)), False),
        (lambda text, tokens: 0.0, False),
    ],
    ids=["the token", "something else as well", "nothing"],
)
def test_a_function_that_pays_for_special_tokens_alone_never_sees_them(tmp_path, wants, named):
    found = asked(marked(tmp_path, wants), "H52")
    assert ("decoded without them" in found.headline) is named, found.text
    assert (found.level in ALARMS) is named


class Box:
    """Opens for its code; pays 1 if it is open, less what was tried."""

    def __init__(self):
        self.tried, self.opened = 0, False

    def reset(self, code, **_):
        self.code, self.tried = code, 0

    def turn(self, code):
        self.tried += 1
        self.opened = self.opened or code == self.code

    def get_reward(self):
        return float(self.opened) - self.tried / 10


class Closed(Box):
    def reset(self, code, **_):
        super().reset(code)
        self.opened = False


class Counting(Closed):
    """Keeps something that no pay depends on."""

    played = 0

    def reset(self, code, **_):
        super().reset(code)
        self.played += 1


class ByLot(Box):
    def get_reward(self):
        return random.random()


def calling(name, arguments):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"function": function}]}


def judged(judge, kind, rows, plays):
    """What is said of an environment in which these calls were made, one play for each row."""
    heard = Heard()
    heard.calls[0] = ({"completions": plays, "environments": None}, [0.0] * len(rows))
    trainer = SimpleNamespace(
        environment_factories={None: kind},
        _multi_environment=False,
        reward_funcs=[lambda environments, **_: [each.get_reward() for each in environments]],
        reward_func_names=["paid"],
        num_generations=4,
        train_dataset=Dataset.from_list(rows),
    )
    generated = Generated((None, [[1]] * len(rows), None, plays), {})
    return judge(trainer, heard, Played(rows, {}, generated))


@pytest.mark.parametrize(
    ("kind", "named"), [(Box, True), (Closed, False), (Counting, False), (ByLot, False)]
)
def test_an_environment_that_keeps_what_an_episode_left_is_paid_for_it(kind, named):
    rows = [{"prompt": "Open it.", "code": code} for code in range(8)]
    calls = [[{"code": code}, {"no": "such"}] for code in range(8)]
    plays = [[calling("turn", arguments) for arguments in play] for play in calls]
    found = judged(judge_reset, kind, rows, plays)
    assert (found is not None) is named
    if found is not None:
        assert "`opened`" in found.text and "8 of 8" in found.text


class TwoWords(nn.Module):
    """A recurrent policy that reads more tokens than it writes."""

    def __init__(self):
        super().__init__()
        self.table, self.gru = nn.Embedding(4, 8), nn.GRU(8, 16, batch_first=True)
        self.speak, self.worth = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, ids, state=None):
        out, state = self.gru(self.table(ids), state)
        return self.speak(out), state


def played(folder, *, cleared, trained_from=None):
    """A sampler of its own that clears its state before each batch, or does not."""
    torch.manual_seed(0)
    model, state = TwoWords(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with flatline.watch(model, optimizer, folder) as watch:
        for _ in range(6):
            state = torch.zeros(1, 8, 16) if cleared else state
            begun = state
            rows = given = torch.full((8, 1), 3)
            with torch.no_grad():
                for _ in range(4):
                    logits, state = model(given, state)
                    given = torch.multinomial(logits[:, -1].softmax(-1), 1)
                    rows = torch.cat([rows, given], 1)
            watch.rewards([0.0, 1.0] * 4)
            logp = model(rows, begun if trained_from else None)[0].log_softmax(-1)[:, :-1]
            optimizer.zero_grad()
            (-logp.gather(2, rows[:, 1:, None]).mean()).backward()
            optimizer.step()
    return flatline.Trace.open(folder)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"cleared": False}, True),
        ({"cleared": False, "trained_from": True}, False),
    ],
)
def test_a_hidden_state_that_a_sampler_alone_keeps_is_a_stale_cache(tmp_path, how, named):
    trace = played(tmp_path, **how)
    found = told(trace, "H19")
    assert (found.level is Level.SUSPECT) is named and (named or found.level not in ALARMS)
    assert named is ("hidden state" in found.fix)
    assert "slices" not in " ".join(trace.run["notes"]), "it reads more tokens than it writes"
