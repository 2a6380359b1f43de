"""H04: limits on length cut what is needed."""

import numpy as np
import pytest
from tests.hypotheses.edited import levels_of
from tests.traces import M, T, healthy_rows, rollout_rows, run_facts, trace_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h04_context_truncation import ContextTruncation
from flatline.trace import Trace

H04 = ContextTruncation()
GROUPS = [[0.0, 1.0, 0.5, 0.5]] * 12


def observations(lengths):
    """One observation per rollout, of these lengths."""
    rollouts = rollout_rows(GROUPS, finish="answered")
    tokens = [
        {
            "step": 1,
            "rollout": row["rollout"],
            "ids": np.arange(length + 2),
            "author": [int(M), *[int(T)] * length, int(M)],
            "trained": [1, *[0] * length, 1],
        }
        for row, length in zip(rollouts, lengths, strict=True)
    ]
    return Trace.from_rows(run=run_facts(), rollouts=rollouts, tokens=tokens)


def test_completions_that_are_cut_off_are_no_alarm_while_the_reward_rises():
    def cut(gain):
        rows = healthy_rows(steps=20, gain=gain)
        for row in rows["rollouts"]:
            row["finish"] = "length" if row["rollout"] % 2 else "eos"
            row["reward"] *= 0.8 if row["rollout"] % 2 else 1.0
        return Trace.from_rows(run=run_facts(), **rows)

    assert H04.sign(cut(0.4)).level is Level.OK
    assert H04.sign(cut(0.0)).level is Level.SUSPECT


@pytest.mark.parametrize("lengths", [[11, 12, 13] * 16, [13] * 48, [13] * 20 + [9] * 28])
def test_observations_of_a_fixed_form_were_not_cut(lengths):
    assert H04.sign(observations(lengths)).level is Level.OK


@pytest.mark.parametrize(
    ("paid", "level"), [(lambda cut: 0.5 - 0.4 * cut, "suspect"), (lambda cut: 0.5, "note")]
)
def test_completions_that_are_cut_off_are_suspected_only_where_that_is_paid_less(paid, level):
    finish = ["length", "length", "length", "eos"] * 12
    rng = np.random.default_rng(1)
    groups = [[paid(k < 3) + rng.normal(0, 0.1) for k in range(4)] for _ in range(12)]
    assert H04.sign(trace_of(groups, finish=finish)).level == level


def cut_at_six_bits(wordy):
    """Groups of six, all cut off; a share of the right bits is paid, and 1 for the whole answer.
    Of those who are wordy each says it in its own words."""
    rng = np.random.default_rng(0)
    said, paid = [], []
    for number in range(12):
        gold = format(number * 5, "06b")
        answers = [gold] * 3 + ["".join(rng.choice(["0", "1"], 6)) for _ in range(3)]
        said += [f"so {k}: {answer}" if wordy else answer for k, answer in enumerate(answers)]
        hits = [sum(x == y for x, y in zip(a, gold, strict=True)) / 6 for a in answers]
        paid.append([share + (share == 1) for share in hits])
    return trace_of(paid, finish="length", completion=said, completion_tokens=6)


@pytest.mark.parametrize(("right", "level"), [(False, "note"), (True, "suspect")])
def test_a_part_for_brevity_does_not_make_a_cut_cost_anything(right, level):
    """Half of each group is cut and therefore long; the other part pays all alike, or only what
    ended."""
    rng = np.random.default_rng(1)
    finish = ["length", "length", "eos", "eos"] * 12
    tokens = [40 if end == "length" else int(rng.integers(5, 30)) for end in finish]
    parts = [
        {"word": float(end == "eos") if right else float(rng.random()), "short": -0.1 * length}
        for end, length in zip(finish, tokens, strict=True)
    ]
    rewards = np.array([sum(part.values()) for part in parts]).reshape(12, 4).tolist()
    run = run_facts(reward_weights={"word": 1.0, "short": 1.0})
    trace = trace_of(rewards, run=run, finish=finish, completion_tokens=tokens, parts=parts)
    assert H04.sign(trace).level == level


@pytest.mark.parametrize(("best", "level"), [(1.0, Level.NOTE), (0.4, Level.SUSPECT)])
def test_where_no_group_has_both_kinds_the_best_pay_tells_what_a_cut_costs(best, level):
    cut, ended = [0.0, best, 0.2, 0.3], [0.0, 0.5, 0.9, 0.3]
    finish = (["length"] * 4) * 9 + ["eos"] * 12
    assert H04.sign(trace_of([cut] * 9 + [ended] * 3, finish=finish)).level is level


NAMES = ("Anselm", "Berta", "Cornelius", "Dorothea", "Eberhard", "Franziska", "Gottfried", "Hedwig")
THINGS = ("marbles", "stamps", "shells", "apples", "pencils")


def questions(count=24):
    rng = np.random.default_rng(2)
    made = []
    for _ in range(count):
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        told = [f"{name} {does} {thing}." for does in ("finds", "buys seven", "loses some")]
        rng.shuffle(told)
        made.append(f"{' '.join(told)} How many {thing} does {name} have in the end?")
    return made


def prompted(texts, gold="3"):
    """A trace with one group for each of these prompts, a token to a character."""
    letters = sorted(set("".join(texts)) | {"$"})
    ids = {letter: at for at, letter in enumerate(letters)}
    rows = rollout_rows([[0.0, 1.0]] * len(texts), gold=gold, finish="eos")
    tokens = [
        {
            "step": row["step"],
            "rollout": row["rollout"],
            "prompt_ids": [ids[letter] for letter in texts[row["group"]] + "$"],
            "ids": [ids["$"]],
            "author": [M],
            "trained": [1],
        }
        for row in rows
    ]
    vocabulary = [{"id": at, "text": letter} for letter, at in ids.items()]
    return Trace.from_rows(run=run_facts(), rollouts=rows, tokens=tokens, vocabulary=vocabulary)


def test_prompts_that_are_cut_in_the_middle_of_a_word_are_suspected():
    found = H04.sign(prompted([text[:61] for text in questions()]))
    assert found.level is Level.SUSPECT and found.headline == "Your prompts are cut off."


@pytest.mark.parametrize("texts", [
    questions(),
    [f"What is {a} plus {b}" for a, b in zip(range(10, 34), range(40, 64), strict=True)],
    [f"Spell {word}" for word in ("cat", "dog", "Spe", "hen", "fox", "owl", "ape", "Sp1", "ant")],
    [text[:61] for text in questions(6)],
], ids=["whole", "of one form", "single words", "few"])  # fmt: skip
def test_prompts_that_end_or_have_one_form_or_are_few_are_not_called_cut(texts):
    assert H04.sign(prompted(texts)).level is not Level.SUSPECT


test_levels_of_the_sign = levels_of(H04.sign, {
    "a full context": ("suspect", lambda: trace_of(GROUPS, finish=["context", "answered"] * 24)),
    "completions that are cut off are suspected when many (2)": ("ok",
        lambda: trace_of(GROUPS, finish=["length", *["eos"] * 11] * 4)),
    "completions that are cut off are suspected when many": ("suspect",
        lambda: trace_of(GROUPS, finish=["length", "eos"] * 24)),
    "observations that all have one length were cut": ("suspect",
        lambda: observations([13] * 40 + [5] * 8)),
    "observations with longer ones among them were not cut": ("ok",
        lambda: observations([17] * 34 + [21] * 14)),
    "short answers of a calculator have one length": ("ok", lambda: observations([2] * 48)),
    "one prompt is too little and an empty log": ("unknown",
        lambda: trace_of([[0.0, 1.0]], finish="length")),
    "completions that are all cut off are suspected whatever they are paid": ("suspect",
        lambda: trace_of(GROUPS, finish="length")),
    "answers of a fixed length need no end": ("note", lambda: cut_at_six_bits(wordy=False)),
    "answers of a fixed length need no end (2)": ("suspect", lambda: cut_at_six_bits(wordy=True)),
    "documents that were left out": ("suspect",
        lambda: trace_of(GROUPS, finish="answered", documents_dropped=[0, 1] * 24)),
    "prompts that fill the limit": ("suspect",
        lambda: trace_of(GROUPS, finish="eos",
            prompt_tokens=np.where(np.arange(48) // 4 % 2, 4096, 1000 + np.arange(48)))),
    "prompts of a fixed form are often the longest without being cut": ("ok",
        lambda: trace_of(GROUPS, finish="eos",
            prompt_tokens=np.where(np.arange(48) // 4 < 11, 463, 455 + np.arange(48) % 3))),
    "prompts of a fixed form are often the longest without being cut (2)": ("ok",
        lambda: trace_of(GROUPS, finish="eos", prompt_tokens=440 + np.arange(48) // 4 % 12)),
    "one long prompt is no limit": ("ok",
        lambda: trace_of(GROUPS, finish="eos", prompt_tokens=np.where(np.arange(48) < 4,
            4096, 1000))),
    "observations are looked at where no finish was recorded": ("suspect",
        lambda: Trace.from_rows(run=run_facts(), rollouts=[{k: v for k,
            v in row.items() if k != "finish"} for row in rollout_rows(GROUPS)],
            tokens=observations([13] * 40 + [5] * 8).tables["tokens"].to_table().to_pylist())),
    "the beginning of a text may be what is to be continued": ("no suspect",
        lambda: prompted([text[:61] for text in questions()], gold=None)),
})  # fmt: skip
