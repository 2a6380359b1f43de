"""What the numbers of a log say: true, short, and the same whatever the columns are called."""

import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import Level
from flatline.remarks import SHOWN, remarks_of
from flatline.trace import Trace
from flatline.trace.importers import open_log
from flatline.trace.importers.aliases import CAVEATS, COLUMNS
from flatline.trace.importers.resolve import is_known

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from real_logs import said_of

LOGS = Path(__file__).parents[1] / "docs" / "real-logs"
READINGS = json.loads((LOGS / "readings.json").read_text())
MADE = sorted(name for name in READINGS if (LOGS / name).is_file())


def log(**columns):
    """A log of TRL's; `rewards__a` stands for `rewards/a/mean`."""
    rows = len(next(iter(columns.values())))
    named = {name.replace("rewards__", "rewards/"): values for name, values in columns.items()}
    listed = []
    for at in range(rows):
        row = {name: float(values[at]) for name, values in named.items()}
        ours = {name: row[name] for name in OURS & row.keys()}
        listed.append({"step": at + 1, **ours, "metrics": row})
    unknown = sorted(name for name in named.keys() - OURS if not is_known(name))
    run = {"source": "import:trl", "unrecognised": unknown, "settings": {}}
    return Trace.from_rows(run=run, steps=listed)


OURS = {"reward", "kl", "loss", "entropy", "completion_length", "grad_norm", "learning_rate"}
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_noise():
    """Whatever ran before, and in whichever process."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def wobbling(level, rows=60, by=0.1):
    return level * (1 + by * RNG.normal(size=rows))


def said(trace):
    return " ".join(remarks_of(trace))


def test_parts_that_never_pay_and_parts_that_pay_everybody_are_told():
    part = wobbling(0.5)
    same = {"rewards__b": part * 0, "rewards__c": part * 0 + 0.2}
    told = said(log(reward=part + 0.2, rewards__a=part, **same))
    assert "`b` is 0 in all 60 rows" in told
    assert "`c` is 0.2 in all 60 rows: it pays everybody the same" in told


def test_two_names_of_one_signal_are_told():
    part, other = wobbling(0.5), wobbling(0.3)
    told = said(log(reward=part + other, rewards__a=part, rewards__b=part, rewards__c=other))
    assert "`a` and `b` are the same in all 60 rows" in told


def test_the_weights_of_the_parts_are_read_off_the_sum():
    part, other = wobbling(0.5), wobbling(0.3)
    told = said(log(reward=2 * part - 0.5 * other, rewards__a=part, rewards__b=other))
    assert "The reward is 2 `a` - 0.5 `b`" in told


def test_parts_that_do_not_add_up_have_no_weights():
    told = said(log(reward=wobbling(1.0), rewards__a=wobbling(0.5), rewards__b=wobbling(0.3)))
    assert "as its columns add up" not in told
    assert "Of the change" not in told


def test_the_part_that_made_the_gain_is_told():
    gain, still = np.linspace(0, 1, 60) + wobbling(0.1), wobbling(0.3)
    told = said(log(reward=gain + still, rewards__a=gain, rewards__b=still))
    assert "`a` +0.6" in told
    assert "`b` hardly counts" in told


def test_a_scorer_and_its_judge_that_disagree_are_told():
    hits = np.clip(wobbling(0.3, by=0.3), 0, 1)
    told = said(log(reward=hits, scorer_asr=hits, judge_asr=hits * 0))
    assert "`judge_asr` and `scorer_asr` disagree: 0 in every row" in told


def test_beta_is_read_off_loss_and_kl_and_only_where_they_go_together():
    kl = wobbling(0.2, by=0.4)
    assert "beta is 0.04" in said(log(reward=wobbling(1.0), kl=kl, loss=0.04 * kl))
    assert "beta" not in said(log(reward=wobbling(1.0), kl=kl, loss=wobbling(0.1, by=1.0)))


def test_a_kl_that_no_update_can_have_made_is_told():
    rate = np.linspace(1e-8, 1e-6, 60)
    told = said(log(reward=wobbling(1.0), kl=wobbling(0.5), learning_rate=rate))
    assert "did not start at its reference" in told
    grown = np.linspace(0, 0.5, 60)
    assert "reference" not in said(log(reward=wobbling(1.0), kl=grown, learning_rate=rate))


def test_a_policy_that_hardly_moves_is_told_where_rewards_differ():
    still = {"reward": wobbling(1.0), "kl": wobbling(0.1), "completion_length": wobbling(50)}
    assert "hardly moves" in said(log(**still, reward_std=wobbling(0.3)))
    assert "hardly moves" not in said(log(**still, reward_std=wobbling(0.3) * 0))


def test_the_schedule_is_told():
    rate = np.concatenate([np.linspace(0, 1e-5, 20), np.linspace(1e-5, 0, 40)])
    told = said(log(reward=wobbling(1.0), learning_rate=rate))
    assert "rises to 1e-05 until step 20, then falls to 0" in told


def test_a_rate_that_somebody_changed_jumps_and_is_no_warm_up():
    rate = np.repeat([3e-5, 6e-4], 30)
    told = said(log(reward=wobbling(1.0), learning_rate=rate))
    assert "The learning rate jumps from 3e-05 to 0.0006 at step 31" in told
    assert "rises" not in told


def test_a_setting_that_changes_on_the_way_is_told_whatever_it_is_called():
    told = said(log(reward=wobbling(1.0), my_weight=np.repeat([0.1, 0.001], 30)))
    assert "`my_weight` jumps from 0.1 to 0.001 at step 31" in told
    assert "jumps" not in said(log(reward=wobbling(1.0), my_weight=wobbling(0.1)))


def test_a_kl_that_explodes_in_some_rows_is_told_with_its_largest():
    kl = np.full(60, 0.02)
    kl[[33, 40, 45, 50, 52, 57]] = [7, 12, 22, 5, 3, 2]
    told = said(log(reward=wobbling(1.0), kl=kl))
    assert "The KL is 0.02 in 54 of 60 rows (otherwise 22 nat per token at most, step 46" in told
    assert "never before step 34" in told
    told = said(log(reward=wobbling(1.0), kl=kl * wobbling(1.0)))
    assert re.search(r"The KL is \S+ to \S+ nat per token in 6 rows since step 34 \(most at", told)


def test_rows_without_a_finite_gradient_are_told():
    norm = wobbling(1.0)
    norm[[22, 30]] = np.nan
    assert "no number in 2 of 60 rows (steps 23, 31)" in said(log(reward=norm * 0, grad_norm=norm))


def test_a_part_that_does_not_move_has_not_come_to_a_ceiling():
    part = np.minimum(wobbling(0.1, by=0.08), 0.1)
    told = said(log(reward=part + wobbling(1.0), rewards__a=part, rewards__b=wobbling(1.0)))
    assert "ceiling at the end" not in told


def test_a_part_that_is_length_is_told_and_one_that_is_not_is_not():
    length, other = wobbling(40, by=0.3), wobbling(0.5)
    parts = {"rewards__a": 0.01 * length, "rewards__b": other}
    told = said(log(reward=0.01 * length + other, completion_length=length, **parts))
    assert "`a` follows the length of completions" in told
    assert "`b` follows" not in told


def test_a_share_that_goes_to_nothing_while_the_reward_rises_is_told():
    gain = np.linspace(1, 10, 60) + wobbling(0.2)
    share = np.where(np.arange(60) < 40, np.abs(wobbling(0.4, by=0.4)), 0.0)
    assert "while the reward rises" in said(log(reward=gain, checked=share))
    assert "while the reward" not in said(log(reward=gain, checked=np.abs(wobbling(0.4, by=0.4))))


def test_a_share_that_the_trainer_logs_is_told_where_it_surely_moves():
    solved = np.linspace(0.3, 0.7, 60) + 0.05 * RNG.normal(size=60)
    rows = [
        {"step": at + 1, "reward": 0.5, "metrics": {"batch/solve_all": value, "epoch": at / 60}}
        for at, value in enumerate(solved.tolist())
    ]
    run = {"source": "import:jsonl", "unrecognised": [], "settings": {}}
    told = said(Trace.from_rows(run=run, steps=rows))
    assert re.search(r"`batch/solve_all` rises from 0\.[34]\d* to 0\.6", told)
    assert "epoch" not in told


def test_recorded_rollouts_and_other_sources_have_no_remarks():
    assert remarks_of(Trace.from_rows(run={"source": "attach"}, steps=[{"step": 1}])) == ()


@pytest.mark.parametrize("name", MADE)
def test_what_a_reader_sees_in_a_made_log_is_said_as_the_page_counts_it(name):
    readings = READINGS[name]["reader"]
    found = said_of(LOGS / name, readings)
    assert sum(found) >= READINGS[name]["said"], "the page says more than is said now"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MADE)
def test_renaming_reward_functions_and_columns_changes_no_finding(tmp_path, name, seed):
    text = (LOGS / name).read_text()
    trace = open_log(LOGS / name)
    own = {column.split("rewards/")[1].removesuffix("/mean") for column in functions(trace)}
    own = own or set(trace.run["unrecognised"])
    names = dict(zip(sorted(own), invented(len(own), seed), strict=True))
    renamed = tmp_path / name
    renamed.write_text(rewritten(text, {**names, **other_trainers(trace, seed)}))
    before, after = diagnose(trace), diagnose(open_log(renamed))
    assert levels(after) == levels(before)
    assert after.trend == before.trend
    assert told(after, {new: old for old, new in names.items()}) == told(before, {})


def other_trainers(trace, seed):
    """What the columns may be called in somebody else's log."""
    draw = random.Random(seed)
    names = {}
    for column, name in trace.run["aliases"].items():
        other = [one for one in COLUMNS[column] if "*" not in one and one not in CAVEATS]
        unit = re.search(r" [(\[].*", name)  # it says what the numbers are, under any name
        names[name.removeprefix("train/")] = draw.choice(other) + (unit[0] if unit else "")
    return names


def functions(trace):
    return [n for n in trace.metric_names if "rewards/" in n and not n.endswith("/std")]


def invented(count, seed):
    """Names without a meaning, in no order, one of them telling the opposite."""
    draw = random.Random(seed)
    fixed = ["correctness", "format_reward", "length_penalty"]
    made = ["".join(draw.choices("abcdefghij", k=9)) for _ in range(count)]
    return draw.sample([*fixed, *made], count)


def rewritten(text, names):
    """The same log under other names: all are taken away before any new one comes."""
    for at, old in enumerate(names):
        text = text.replace(f"rewards/{old}/", f"rewards/<{at}>/")
        text = text.replace(f'"{old}"', f'"<{at}>"').replace(f'"train/{old}"', f'"train/<{at}>"')
        head, *rest = text.split("\n")
        if "," in head and '"' not in head:  # the head of a CSV file
            head = ",".join(f"<{at}>" if name == old else name for name in head.split(","))
            text = "\n".join([head, *rest])
    for at, new in enumerate(names.values()):
        text = text.replace(f"<{at}>", new)
    return text


def levels(report):
    return {finding.hypothesis: finding.level for finding in report.findings}


def told(report, back):
    """Remarks with the old names and their words in any order, without the one that reads names."""
    texts = [text for text in report.remarks if "disagree" not in text]
    for new, old in back.items():
        texts = [text.replace(f"`{new}`", f"`{old}`") for text in texts]
    return sorted(sorted(text.replace(",", "").replace(".", " ").split()) for text in texts)


def test_the_collapse_whose_reward_rises_is_told_as_a_collapse():
    report = diagnose(open_log(LOGS / "collapse-right.json"))
    assert report.trend.rises
    [cause] = report.causes
    assert cause.hypothesis == "H43"
    assert cause.level is Level.SUSPECT
    assert "`right` goes from 0.36 to 0" in cause.text


def test_the_longest_of_many_lengths_is_no_limit_though_some_rows_share_it():
    longest = RNG.integers(512, 560, 300).astype(float)
    found = remarks_of(log(reward=RNG.random(300), **{"completions/max_length": longest}))
    assert not any("limit" in text for text in found)


def test_a_reward_that_stops_to_be_paid_is_told_with_the_step_and_with_what_goes_on():
    reward = np.concatenate([wobbling(0.5, 30), np.zeros(20)])
    norm = np.concatenate([wobbling(1.0, 30), np.zeros(20)])
    told = said(log(reward=reward, grad_norm=norm, completion_length=wobbling(40, 50)))
    assert "The reward is 0 in all 20 rows since step 31 (0." in told
    assert "the length of completions does not jump there" in told
    assert "at the same step the gradient norm is 0 in all 20 rows since step 31" in told


def test_a_policy_that_falls_silent_does_not_write_as_before():
    reward = np.concatenate([wobbling(0.5, 30), np.zeros(20)])
    length = np.concatenate([wobbling(40, 30), np.ones(20)])
    told = said(log(reward=reward, completion_length=length))
    assert "The reward is 0 in all 20 rows since step 31" in told
    assert "at the same step the length of completions is 1 tokens in all 20 rows" in told
    assert "not jump" not in told


def test_completions_of_a_step_are_not_told_where_steps_may_be_left_out():
    lengths = RNG.integers(160, size=39) / 16 + 20
    steps = [
        {"step": 2 * at + 2, "reward": 0.5, "completion_length": length}
        for at, length in enumerate(lengths.tolist())
    ]
    for source, told in (("import:trl", True), ("import:csv", False)):
        trace = Trace.from_rows(run={"source": source, "settings": {}}, steps=steps)
        assert ("(8 a step)" in said(trace)) is told


def test_a_reward_that_is_the_length_is_told_whatever_it_is_called():
    length = wobbling(40)
    told = said(log(reward=-0.1 * length, rewards__correct=-0.1 * length, completion_length=length))
    assert "follows the length of completions (r = -1.00), lower where they are longer" in told
    assert "follows the length" not in said(log(reward=wobbling(1.0), completion_length=length))


def test_a_part_that_stands_while_the_total_does_not_move_is_told():
    part, other = wobbling(0.5), wobbling(0.5, by=0.6)
    told = said(log(reward=part + other, rewards__a=part, rewards__b=other))
    assert re.search(r"`a` \(0\.[45]\d*\) does not change", told)


def test_the_largest_of_a_few_means_is_no_ceiling():
    part = np.linspace(0.4, 0.6, 12) + 0.001 * np.arange(12) ** 2 % 0.01
    assert "ceiling" not in said(log(reward=part + 0.1, rewards__a=part, rewards__b=part * 0))
    full = np.where(np.arange(60) % 4, 1.0, 0.98)
    assert "`a` is at its ceiling" in said(log(reward=full + 0.1, rewards__a=full))


def test_a_dip_and_its_way_back_are_told_with_their_steps():
    share = 0.5 + 0.05 * RNG.normal(size=80)
    share[30:42] -= 0.4
    told = said(log(reward=wobbling(1.0, 80), solved=share))
    assert re.search(r"`solved` goes down to 0\.\d+ in steps 31 to 42 \(0\.[45]\d* before", told)


def test_columns_that_change_at_the_same_step_are_told_in_one_sentence_with_what_does_not():
    scale = np.repeat([1.0, 100.0], 30)
    right, norm = wobbling(0.5, by=0.15), wobbling(1.0)
    columns = {"reward": right * scale, "reward_std": wobbling(0.5) * scale, "grad_norm": norm}
    told = said(log(**columns, passed=right))
    assert "at step 31; at the same step the spread of the rewards rises from 0." in told
    assert "the gradient norm and `passed` do not jump there" in told
    assert "the same as `passed` at first, and 100 times `passed` since step 31" in told


def test_what_else_differs_while_a_setting_does_is_told():
    rate = np.full(70, 1e-4)
    rate[20:30] = 1e-3
    reward = wobbling(0.5, 70, by=0.2)
    reward[20:30] -= 0.3
    told = said(log(reward=reward, learning_rate=rate))
    assert "jumps from 0.0001 to 0.001 at step 21, then to 0.0001 at step 31" in told
    assert re.search(r"the reward (is 0\.[12]\d* in these steps|goes down to 0\.[12])", told)


def test_a_ramp_does_not_jump_and_a_wave_does_not_stay():
    ramp = np.linspace(40, 60, 40) + 4 * RNG.normal(size=40)
    assert "at step" not in said(log(reward=wobbling(1.0, 40), score=ramp))
    wave = 500 + 200 * np.sin(np.arange(600) / 60) + 30 * RNG.normal(size=600)
    assert "does not change" not in said(log(reward=wobbling(1.0, 600), completion_length=wave))


def test_a_single_row_that_stands_out_is_told_with_its_step():
    norm = wobbling(0.8)
    norm[37] = 227
    told = said(log(reward=wobbling(1.0), grad_norm=norm))
    assert "The gradient norm is 227 at most (step 38), otherwise about 0.8" in told


def test_a_value_head_that_explains_nothing_is_told():
    told = said(log(reward=wobbling(1.0), **{"val/explained_variance": -wobbling(2.0)}))
    assert "is below 0 in 60 of 60 rows: the value head explains nothing there" in told


def test_each_evaluation_is_told_with_its_first_last_and_best():
    score = np.full(60, np.nan)
    score[9::10] = [0.3, 0.4, 0.45, 0.35, 0.4, 0.36]
    told = said(log(reward=wobbling(1.0), **{"eval/gsm8k/acc": score}))
    assert "is 0.3 at first, 0.36 at last and 0.45 at most (step 30) in 6 evaluations" in told


def test_what_is_noise_is_said_to_be_none_whatever_the_number_of_columns():
    rng = np.random.default_rng(3)
    moved = 0
    for _ in range(40):
        columns = {f"c{at}": 1 + 0.2 * rng.normal(size=60) for at in range(20)}
        moved += (
            re.search(r"rises|falls|goes|jumps", said(log(**columns)).split("Perhaps")[0])
            is not None
        )
    assert moved <= 4


def test_a_reader_does_not_drown_and_json_has_everything():
    part = {f"rewards__p{at}": np.repeat([0.1, 0.9], 30) * wobbling(1.0) for at in range(30)}
    report = diagnose(log(reward=wobbling(1.0), **part, kl=wobbling(0.1), entropy=wobbling(1.0)))
    shown = str(report)
    assert len(report.to_json()["remarks"]) == len(report.remarks)
    assert sum(text[:40] in shown for text in report.remarks) <= SHOWN
