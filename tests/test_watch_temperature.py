"""`flatline.watch`, H21 and H34: a loop that draws and scores at a temperature."""

import numpy as np
import pytest
import torch

import flatline
from flatline.errors import NotRecorded
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.drawn_at import drawn_at
from flatline.hypotheses.h21_sampling_parameters import SamplingParameters
from flatline.hypotheses.h34_duplicate_samples import DuplicateSamples
from flatline.live.watch.drawn import TEMPERATURES
from flatline.trace import Trace
from tests.tiny import tiny_model

VOCABULARY, PROMPTS, GROUP, PROMPT, DRAWN, STEPS = 40, 4, 8, 6, 5, 8
SHARP = 2.5
"""Makes the policy so sure that at a low temperature many completions are the same."""
TOLD = ("H21", "H34")


def drawn_by(model, prompts, temperature, *, copies):
    ids = prompts
    with torch.no_grad():
        for _ in range(DRAWN):
            chances = (model(input_ids=ids).logits[:, -1] / temperature).softmax(-1)
            token = torch.multinomial(chances, 1)
            if copies:  # half of a group are what the first one is, as from one seed
                token = token[:: GROUP // 2].repeat_interleave(GROUP // 2, dim=0)
            ids = torch.cat([ids, token], dim=1)
    return ids


def run_of(folder, drawn, scored, *, seed=0, copies=False):
    """The findings about a loop that draws and scores at these temperatures, by their codes."""
    torch.manual_seed(seed)
    model = tiny_model(vocab=VOCABULARY, seed=seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(SHARP)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    with flatline.watch(model, optimizer, folder) as watch:
        for _ in range(STEPS):
            prompts = torch.randint(4, VOCABULARY, (PROMPTS, PROMPT)).repeat_interleave(GROUP, 0)
            ids = drawn_by(model, prompts, drawn, copies=copies)
            rewards = (ids[:, PROMPT:] * 37 % 97 / 97).mean(1)
            watch.rewards(rewards.tolist())
            paid = rewards.view(PROMPTS, GROUP)
            gain = ((paid - paid.mean(1, keepdim=True)) / (paid.std(1, keepdim=True) + 1e-4)).view(
                -1
            )
            logps = (model(input_ids=ids).logits[:, :-1] / scored).log_softmax(-1)
            own = logps.gather(2, ids[:, 1:, None])[:, PROMPT - 1 :, 0]
            optimizer.zero_grad()
            (-(gain[:, None] * own).mean()).backward()
            optimizer.step()
    return {one.hypothesis: one for one in flatline.diagnose(Trace.open(folder)).findings}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.4])
def test_a_loop_that_scores_at_the_temperature_that_it_draws_at_is_silent(temperature, tmp_path):
    found = run_of(tmp_path, temperature, temperature)
    assert [one for one in found.values() if one.level in ALARMS] == []
    assert {code: found[code].level for code in TOLD} == dict.fromkeys(TOLD, Level.OK)


def test_copies_are_found_at_a_low_temperature_too(tmp_path):
    assert run_of(tmp_path, 0.6, 0.6, copies=True)["H34"].level in ALARMS


def test_tokens_drawn_at_another_temperature_than_is_scored_are_an_alarm_and_no_copies(tmp_path):
    found = run_of(tmp_path / "hotter", 1.0, 0.7)
    assert found["H21"].level is Level.SUSPECT and found["H34"].level not in ALARMS
    found = run_of(tmp_path / "colder", 0.5, 1.0)
    assert found["H21"].level is Level.SUSPECT and found["H34"].level is Level.UNKNOWN


OWN = TEMPERATURES.index(1.0)


def watched(*, taken=0.7, best=OWN, width=4.0, doubt=600.0, least=0.1, plain=90, tokens=900):
    """A watched run whose tokens are likeliest at one temperature; each step of 15 % away from it
    costs `width` nats times its square."""
    steps = np.arange(len(TEMPERATURES)) - best
    return Trace.from_rows(
        run={
            "source": "watch",
            "drawn": {
                "temperatures": TEMPERATURES,
                "tokens": tokens,
                "logps": (-1000 - width * steps**2).tolist(),
                "least": [least * doubt] * len(TEMPERATURES),
                "in_doubt": [doubt] * len(TEMPERATURES),
                "rows": 100,
                "plain_rows": plain,
            },
        },
        steps=[{"step": step, "metrics": {"loss_temperature": taken}} for step in (1, 2)],
    )


def h21(**changes):
    return SamplingParameters().sign(watched(**changes))


def test_what_was_drawn_decides_where_it_is_certain():
    assert h21(taken=1.0).level is Level.OK
    assert h21(width=8.0).level is Level.SUSPECT


ABSTAINS = {
    "some rows are weighted": {"plain": 10},
    "few tokens had a choice": {"doubt": 150.0},
    "unlikely ones were cut off": {"least": 0.01},
    "too few nats": {"width": 1.0},
}


@pytest.mark.parametrize("changes", ABSTAINS.values(), ids=ABSTAINS)
def test_where_a_guard_abstains_it_is_unknown_and_said_what_the_recording_favours(changes):
    found = h21(**{"width": 8.0, **changes})
    assert found.level is Level.UNKNOWN
    nats = drawn_at(watched(**{"width": 8.0, **changes})).nats
    assert nats > 1 and f"by {nats:.0f} nats" in found.text and "100 rollouts" in found.text


@pytest.mark.parametrize("changes", [{"width": 0.05}, {"least": 0.0}, {"doubt": 20.0}])
def test_tokens_that_fit_the_temperature_of_the_loss_rule_nothing_out_by_that_alone(changes):
    assert h21(taken=1.0, **changes).level is Level.UNKNOWN


@pytest.mark.parametrize("changes", [{"tokens": 100}, {"taken": None}])
def test_without_tokens_or_a_temperature_of_the_loss_nothing_is_known_of_a_watched_loop(changes):
    with pytest.raises(NotRecorded):
        h21(**changes)
    with pytest.raises(NotRecorded):
        DuplicateSamples().sign(watched(**changes))
