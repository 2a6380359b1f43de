"""What the columns of a log say beside its cause: true, short, and only where it surely is so."""

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.remarks import SHOWN, remarks_of
from flatline.trace import Trace
from tests.series.made import RNG, around, line, log, said, wobbling


def parts(a, b, by_a=1.0, by_b=1.0, **more):
    return log(reward=by_a * a + by_b * b, rewards__a=a, rewards__b=b, **more)


def constant_parts():
    part = wobbling(0.5)
    return log(reward=part + 0.2, rewards__a=part, rewards__b=part * 0, rewards__c=part * 0 + 0.2)


def twins():
    part, other = wobbling(0.5), wobbling(0.3)
    return log(reward=part + other, rewards__a=part, rewards__b=part, rewards__c=other)


def judged():
    hits = wobbling(0.3, by=0.3).clip(0, 1)
    return log(reward=hits, scorer_asr=hits, judge_asr=hits * 0)


def with_beta(loss=None):
    kl = wobbling(0.2, by=0.4)
    return log(reward=wobbling(1.0), kl=kl, loss=0.04 * kl if loss is None else loss)


def from_its_reference(kl):
    return log(reward=wobbling(1.0), kl=kl, learning_rate=np.linspace(1e-8, 1e-6, 60))


def still(spread):
    columns = {"kl": wobbling(0.1), "completion_length": wobbling(50)}
    return log(reward=wobbling(1.0), **columns, reward_std=wobbling(spread))


def exploding(by=0.0):
    kl = np.full(60, 0.02)
    kl[[33, 40, 45, 50, 52, 57]] = [7, 12, 22, 5, 3, 2]
    return log(reward=wobbling(1.0), kl=kl * wobbling(1.0, by=by))


def norms(at, value):
    norm = around(0.1, 60, 0.005)
    norm[at] = value
    return log(reward=wobbling(1.0), grad_norm=norm)


def length_pays():
    length = wobbling(40, by=0.3)
    return parts(0.01 * length, wobbling(0.5), completion_length=length)


def share(values):
    return log(reward=np.linspace(1, 10, 60) + wobbling(0.2), checked=np.abs(values))


def lengths(values, rows=110):
    return log(reward=around(0.5, rows), completion_length=values)


def any_lengths():
    return lengths(np.exp(RNG.uniform(np.log(1500), np.log(7000), size=110)))


def repeated():
    rising = line(0.3, 0.8, 60)
    return log(reward=rising, one=rising, two=rising, ten=10 * rising)


def moving_share():
    solved, epoch = line(0.3, 0.7, 60, 0.05), np.arange(60) / 60
    return log(source="import:jsonl", reward=np.full(60, 0.5), batch__solve_all=solved, epoch=epoch)


def tried_groups(parts_of_one):
    shares = RNG.integers(0, parts_of_one + 1, 60) / parts_of_one
    return log(reward=around(0.5, 60), zero_std_share=shares)


def stops(length):
    """The reward and what is learnt of it."""
    gone = {"reward": [*wobbling(0.5, 30), *[0] * 20], "grad_norm": [*wobbling(1, 30), *[0] * 20]}
    return log(**gone, completion_length=length)


def silent():
    return stops([*wobbling(40, 30), *[1] * 20])


def steps_of_16ths(source):
    length = RNG.integers(160, size=39) / 16 + 20
    rows = [{"step": 2 * at + 2, "reward": 0.5, "completion_length": float(one)}
            for at, one in enumerate(length)]  # fmt: skip
    return Trace.from_rows(run={"source": source, "settings": {}}, steps=rows)


def few_means():
    part = np.linspace(0.4, 0.6, 12) + 0.001 * np.arange(12) ** 2 % 0.01
    return parts(part, part * 0 + 0.1)


def longest_of_many():
    longest = RNG.integers(512, 560, 300).astype(float)
    return log(reward=RNG.random(300), completions__max_length=longest)


TOLD = {
    "parts that never pay, and that pay everybody": (
        constant_parts, ["`b` is 0 in all 60", "`c` is 0.2 in all 60"]),
    "two names of one signal": (twins, ["`a` and `b` are the same in all 60 rows"]),
    "the weights of the parts": (
        lambda: parts(wobbling(0.5), wobbling(0.3), 2, -0.5), ["2 `a` - 0.5 `b`"]),
    "the part that made the gain": (
        lambda: parts(np.linspace(0, 1, 60) + wobbling(0.1), wobbling(0.3)),
        ["`a` +0.6", "`b` hardly counts"]),
    "a scorer and its judge that disagree": (judged, ["`scorer_asr` disagree"]),
    "beta": (with_beta, ["beta is 0.04"]),
    "a KL that no update can have made": (
        lambda: from_its_reference(wobbling(0.5)), ["did not start at its reference"]),
    "a policy that hardly moves though rewards differ": (lambda: still(0.3), ["hardly moves"]),
    "a KL that explodes in some rows": (
        exploding, ["0.02 in 54 of 60", "22 nat per token at most, step 46", "before step 34"]),
    "the same where its rows differ": (
        lambda: exploding(0.1), ["nat per token in 6 rows since step 34"]),
    "rows without a finite gradient": (
        lambda: norms([22, 30], np.nan), ["in 2 of 60 rows (steps 23, 31)"]),
    "a row that stands out": (lambda: norms(37, 227.0), ["227 at most (step 38)"]),
    "every row of a few that do": (
        lambda: norms([20, 50], [2.0, 1.5]), ["2 at most (step 21) and 1.5 at step 51"]),
    "a part that is length": (length_pays, ["`a` follows the length of completions"]),
    "a share that goes to nothing while the reward rises": (
        lambda: share(np.where(np.arange(60) < 40, wobbling(0.4, by=0.4), 0)),
        ["while the reward rises"]),
    "columns that repeat the reward": (repeated, ["`one` and `two`, and 0.1 times `ten` in all"]),
    "a share that surely moves": (moving_share, ["`batch/solve_all` rises from 0."]),
    "a reward that stops to be paid, and what goes on": (
        lambda: stops(wobbling(40, 50)),
        ["The reward is 0 in all 20 rows since step 31", "the gradient norm is 0 in all 20 rows",
         "the length of completions does not jump there"]),
    "a policy that falls silent": (silent, ["the length of completions is 1 tokens in all 20"]),
    "completions of a step": (lambda: steps_of_16ths("import:trl"), ["(8 a step)"]),
    "a part that stands while the total does not move": (
        lambda: parts(wobbling(0.5), wobbling(0.5, by=0.6)), ["`a` (0.", "does not change"]),
}  # fmt: skip
UNTOLD = {
    "parts that do not add up": (
        lambda: log(reward=wobbling(1.0), rewards__a=wobbling(0.5), rewards__b=wobbling(0.3)),
        ["as its columns add up", "Of the change"]),
    "beta of a loss that does not follow the KL": (
        lambda: with_beta(wobbling(0.1, by=1.0)), ["beta"]),
    "another reference where the KL grew from 0": (
        lambda: from_its_reference(np.linspace(0, 0.5, 60)), ["reference"]),
    "that a policy does not move that learns nothing": (lambda: still(0.0), ["hardly moves"]),
    "a ceiling of a part that does not move": (
        lambda: parts(np.minimum(wobbling(0.1, by=0.08), 0.1), wobbling(1.0)),
        ["ceiling at the end"]),
    "that a part is length which is not": (length_pays, ["`b` follows"]),
    "a share that only wobbles": (lambda: share(wobbling(0.4, by=0.4)), ["while the reward"]),
    "multiples that chance makes": (any_lengths, ["multiples of"]),
    "a counter": (moving_share, ["epoch"]),
    "groups of shares in 64ths": (lambda: tried_groups(64), ["rests on"]),
    "that a silent policy writes as before": (silent, ["not jump"]),
    "completions of steps that may be left out": (
        lambda: steps_of_16ths("import:csv"), ["a step)"]),
    "a length that the reward does not follow": (
        lambda: log(reward=wobbling(1.0), completion_length=wobbling(40)), ["follows the length"]),
    "a ceiling at the largest of a few means": (few_means, ["ceiling"]),
    "a limit that only some rows share": (longest_of_many, ["limit"]),
}  # fmt: skip


@pytest.mark.parametrize("what", TOLD)
def test_it_is_told(what):
    made, phrases = TOLD[what]
    told = said(made())
    assert [one for one in phrases if one not in told] == [], told


@pytest.mark.parametrize("what", UNTOLD)
def test_it_is_not_told(what):
    made, phrases = UNTOLD[what]
    told = said(made())
    assert [one for one in phrases if one in told] == [], told


def test_recorded_rollouts_and_other_sources_have_no_remarks():
    assert remarks_of(Trace.from_rows(run={"source": "attach"}, steps=[{"step": 1}])) == ()


def test_what_a_trainer_logs_throughout_comes_behind_what_moves():
    rising = line(0.3, 0.8, 150)
    constant = {f"actor__setting_{at}": np.full(150, float(at)) for at in range(8)}
    told = remarks_of(log(reward=rising, entropy=around(0.4 - 0.2 * rising, 150), **constant))
    places = [next(at for at, text in enumerate(told) if w in text) for w in ("entropy", "ing_1")]
    assert places == sorted(places)


def test_what_is_noise_is_said_to_be_none_whatever_the_number_of_columns():
    moved = 0
    for _ in range(40):
        told = said(log(**{f"c{at}": wobbling(1.0, by=0.2) for at in range(20)}))
        certain = told.split("Perhaps")[0]
        moved += any(word in certain for word in ("rises", "falls", "goes", "jumps"))
    assert moved <= 4


def test_a_reader_does_not_drown_and_json_has_everything():
    part = {f"rewards__p{at}": np.repeat([0.1, 0.9], 30) * wobbling(1.0) for at in range(30)}
    report = diagnose(log(reward=wobbling(1.0), **part, kl=wobbling(0.1), entropy=wobbling(1.0)))
    shown = str(report)
    assert len(report.to_json()["remarks"]) == len(report.remarks)
    assert sum(text[:40] in shown for text in report.remarks) <= SHOWN
