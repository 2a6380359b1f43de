"""What the ninth round of scripts that strangers could have written showed."""

import copy
import random
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.nn.functional import log_softmax

import flatline
from flatline.hypotheses.answers import same_answer
from flatline.hypotheses.base import ALARMS, Level
from flatline.hypotheses.gold_fit import foreign_gold
from flatline.hypotheses.h03_kl_divergence import KlDivergence
from flatline.live.trl.departure.asked_again import calls
from flatline.live.trl.departure.data import Heard
from flatline.live.trl.departure.exchanged import judge_exchanged
from flatline.live.trl.departure.unearned import judge_shared
from flatline.live.trl.recorder.reference import Anchor
from flatline.live.trl.recorder.seen_gold import MOST, FitOfGold, SeenGold
from flatline.trace import Trace
from tests.test_strangers_eighth import calling, judged
from tests.test_trl_breadth import told
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


def loop(
    folder,
    *,
    sampled_at=1.0,
    scored_at=1.0,
    keeps=WORDS,
    shift=1,
    clears=True,
    sampler=None,
    model=None,
):
    """REINFORCE with the rewards of the rows' places."""
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
    return flatline.Trace.open(folder)


def test_a_copy_without_the_adapter_that_samples_and_never_gets_it_is_named(tmp_path):
    base = model_of()
    engine = copy.deepcopy(base)
    policy = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    found = told(loop(tmp_path, model=policy, sampler=engine), "H06")
    assert found.level is Level.SUSPECT and "not one of its weights" in found.text


GOLDS = [
    "seven four",
    "nine zero",
    "three one",
    "two six",
    "five five",
    "eight two",
    "one eight",
    "six three",
]


def pays(rule):
    def reward(completions, words, **_):
        return [float(rule(text, gold)) for text, gold in zip(completions, words, strict=True)]

    return reward


def asked_for(rule):
    """A trainer whose gold has a name that says nothing, and a batch of it that was paid."""
    data = Dataset.from_dict({"prompt": [f"q{at}" for at in range(8)], "words": GOLDS})
    said = [GOLDS[at // 4] if at % 2 else "two six" for at in range(16)]
    given = {
        "prompts": ["q"] * 16,
        "completions": said,
        "words": [GOLDS[at // 4] for at in range(16)],
    }
    reward = pays(rule)
    heard = Heard()
    heard.calls[0] = (given, reward(**given))
    trainer = SimpleNamespace(
        reward_funcs=[reward],
        reward_func_names=["says_it"],
        num_generations=4,
        train_dataset=data,
    )
    return trainer, heard


RULES = {
    "exact": lambda text, gold: text == gold,
    "holds": lambda text, gold: gold in text,
    "held": lambda text, gold: text in gold,
    "begins": lambda text, gold: gold.startswith(text),
    "first letter": lambda text, gold: text[:1] == gold[:1],
    "agrees": lambda text, gold: sum(map(str.__eq__, text, gold)) / max(len(text), len(gold)),
    "agrees as far as it goes": lambda text, gold: np.mean(
        [a == b for a, b in zip(text, gold, strict=False)] or [0]
    ),
}


PAY_PIECES = ("held", "begins", "agrees as far as it goes")


@pytest.mark.parametrize("rule", RULES)
def test_right_answers_are_found_by_what_they_earn_and_pieces_of_them_must_earn_less(rule):
    trainer, heard = asked_for(RULES[rule])
    (one,) = calls(trainer, heard)
    assert one.gold == "words"
    asked = SimpleNamespace(reward_weights=None)
    found = judge_exchanged(trainer, asked, heard)
    assert (found is not None) is (rule in PAY_PIECES), found


def test_a_column_that_must_not_be_said_holds_no_right_answers():
    trainer, heard = asked_for(lambda text, banned: banned not in text)
    (one,) = calls(trainer, heard)
    assert one.gold is None


def test_punctuation_that_means_something_is_no_matter_of_form():
    assert (
        same_answer("Yes.", "yes") and same_answer("1,200", "1200") and same_answer("-. .", "-. .")
    )
    different = (
        ("0245", "02:45"),
        ("35", "3.5"),
        ("5", "-5"),
        (".--", "-.."),
        ("x", ""),
        ("13=", "13"),
    )
    for answer, gold in different:
        assert not same_answer(answer, gold)


def answered(rule, say, *, prompts=10):
    """Rows of a generation as the recorder has them: four answers to a prompt."""
    return [
        (
            {"prompt": f"q{k}", "code": code(k), "note": "n"},
            say(k, at),
            np.array([float(rule(say(k, at), code(k)))]),
        )
        for k in range(prompts)
        for at in range(4)
    ]


def code(k):
    return f"{k * 7919 % 1000:03d}"


def data(shift=0, rows=100):
    codes = [code((k + shift) % rows) for k in range(rows)]
    return Dataset.from_dict({"prompt": [f"q{k}" for k in range(rows)], "code": codes})


@pytest.mark.parametrize(
    ("rule", "say", "named"),
    [
        (RULES["exact"], lambda k, at: code(k) if at % 2 else "x", True),
        (RULES["exact"], lambda k, at: code(k + 3), True),  # nobody is paid: gold of other rows
        (RULES["exact"], lambda k, at: f"word {k}", False),
        (RULES["agrees"], lambda k, at: code(k)[:at] + "xyz"[at:], True),
        (lambda text, gold: text != gold, lambda k, at: code(k) if at % 2 else "x", False),
        (lambda text, gold: len(text), lambda k, at: code(k) if at % 2 else "xxxxxx", False),
        (lambda text, gold: text == code((int(text or 0) + 1) % 100), lambda k, at: "5", False),
    ],
)
def test_a_column_shows_itself_as_gold_by_what_is_paid(rule, say, named):
    seen = SeenGold(("answer",), data())
    seen.look(answered(rule, say))
    assert (seen.names == ("code",)) is named, seen.names


def test_a_column_with_a_name_that_says_so_is_believed():
    seen = SeenGold(("code",), data())
    seen.look(answered(RULES["exact"], lambda k, at: "x"))
    assert seen.names == ("code",)


@pytest.mark.parametrize(("shift", "named"), [(0, False), (3, True)])
def test_gold_of_rows_that_a_short_run_never_sees_is_known_to_be_foreign(shift, named):
    """Every second answer that the policy is sure of is wrong anyway."""
    told = {}
    fit = FitOfGold(data(), told.update)
    say = lambda k, at: code(k + shift) if k % 3 else "x"  # noqa: E731
    fit.look(answered(RULES["exact"], say, prompts=36), ("code",))
    trace = Trace.from_rows(run=run_facts() | {"gold_of_data": told}, rollouts=[])
    assert (foreign_gold(trace) is not None) is named
    assert not named or "0 of 36 prompts" in foreign_gold(trace).text


class Shop:
    basket: ClassVar[dict] = {}

    def reset(self, fruit, **_):
        self.fruit = fruit
        self.basket.clear()

    def put(self, fruit):
        self.basket[fruit] = True

    def get_reward(self):
        return float(self.fruit in self.basket)


class Own(Shop):
    def reset(self, fruit, **_):
        self.basket = {}
        self.fruit = fruit


class Lottery(Shop):
    def get_reward(self):
        return random.random()


@pytest.mark.parametrize(("kind", "named"), [(Shop, True), (Own, False), (Lottery, False)])
def test_environments_that_share_what_is_done_in_them_are_named(kind, named):
    rows = [{"prompt": "Buy.", "fruit": "fig" if at % 2 else "plum"} for at in range(8)]
    plays = [[calling("put", {"fruit": row["fruit"]})] for row in rows]
    found = judged(judge_shared, kind, rows, plays)
    assert (found is not None) is named
    assert found is None or "4 of 4" in found.text


@pytest.mark.parametrize(
    ("weight", "every", "named"),
    [(0.99, 1, True), (0.6, 1, False), (0.5, 3, False), (0.0, 1, False)],
)
def test_a_reference_that_comes_after_the_policy_at_every_step_holds_nothing(weight, every, named):
    policy, reference = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    reference.load_state_dict(policy.state_dict())
    told = {}
    trainer = SimpleNamespace(
        model=policy, ref_model=reference, accelerator=SimpleNamespace(unwrap_model=lambda one: one)
    )
    anchor = Anchor(trainer, told.update)
    with torch.no_grad():
        for step in range(1, 10):
            anchor.look()
            policy.weight += 0.01
            if step % every == 0:
                reference.weight.lerp_(policy.weight, weight)
    steps = [{"step": at, "kl": 1e-6 * at} for at in range(1, 10)]
    run = run_facts() | {"reference": told}
    run["settings"] = run["settings"] | {"beta": 0.2}
    found = KlDivergence().sign(Trace.from_rows(run=run, steps=steps))
    assert (found.level in ALARMS) is named, found.text


def test_a_column_that_does_not_show_itself_is_looked_for_in_the_first_rollouts_alone(monkeypatch):
    looks = []
    monkeypatch.setattr(
        SeenGold, "_is_gold", lambda self, name: bool(looks.append(len(self._rows)))
    )
    gold = SeenGold(("answer",), Dataset.from_list([{"prompt": "a", "other": "b"}]))
    for step in range(100):
        answer = {"prompt": str(step), "other": str(step)}
        gold.look([(answer, f"it is {step}", np.array([0.0]))] * 16)
    assert looks[0] == 32 and looks[-1] == MOST and len(looks) < 12 and gold.names == ("answer",)
