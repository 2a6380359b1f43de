"""An empty measurement is *unknown*: no hypothesis takes a mean, a ratio or a correlation over
nothing for a finding.

Every hypothesis is shown traces and live trainers of which one thing, or everything, is missing, no
number, always the same, or there only once. It may say that it cannot tell. It may not fail, warn,
or say "nan"; and of what is missing it may raise no alarm and give no all-clear.
"""

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from tests.each import each
from tests.traces import healthy_rows, run_facts

from flatline.errors import NotRecorded
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import ALARMS, Finding, HasProbe, HasSign, Level
from flatline.hypotheses.logprobs import prefix_spread
from flatline.live import records
from flatline.live.stage_found import unknown
from flatline.live.subject import Subject
from flatline.spec import STAGES
from flatline.trace import Trace
from flatline.trace.schema import TABLES

KEYS = {"step", "rank", "rollout", "group", "name", "id", "text", "ids", "prompt_ids"}
"""Columns that say what a row is about; lists of other lengths than those of ids are damage."""
NO_NUMBER = re.compile(r"\b(nan|inf)\b| None\b")
SIZE = {"steps": 6, "prompts": 4, "generations": 4}


# -- traces


def columns_of(table):
    return [name for name in TABLES[table].names if name not in KEYS]


def with_value(value, held):
    """`value` in the shape of what a column held; text has no numbers."""
    if value is None or isinstance(held, str):
        return None
    if isinstance(held, dict):
        return dict.fromkeys(held, value)
    whole = isinstance(held, int) or (isinstance(held, np.ndarray) and held.dtype.kind in "iu")
    if whole and math.isnan(value):
        return None
    return held * 0 + value if isinstance(held, np.ndarray) else value


def changed(value, *places, **settings):
    """A healthy trace in which these columns hold one value everywhere."""
    rows = healthy_rows(**SIZE)
    for table, column in places:
        for row in rows[table]:
            if column in row:
                row[column] = with_value(value, row[column])
    return Trace.from_rows(run=run_facts(num_generations=4, **settings), **rows)


def log_of(value):
    """Steps and nothing else, as an imported log has them."""
    rows = [
        {name: held if name in KEYS else with_value(value, held) for name, held in row.items()}
        for row in healthy_rows(**SIZE)["steps"]
    ]
    return Trace.from_rows(run=run_facts(), steps=rows)


def untrained(finish, *, asked):
    """No token carries loss."""
    rows = healthy_rows(**SIZE)
    for row in rows["rollouts"]:
        row |= {"trained_tokens": 0, "finish": finish}
    for row in rows["tokens"]:
        row["trained"] = row["trained"] * 0
    settings = {"num_generations": 4, "mask_truncated_completions": asked}
    return Trace.from_rows(run=run_facts(**settings), **rows)


def without_tokens():
    """Completions of no length."""
    rows = healthy_rows(**SIZE)
    for row in rows["rollouts"]:
        row |= dict.fromkeys(("completion_tokens", "model_tokens", "trained_tokens"), 0)
    for row in rows["tokens"]:
        prompts = {name: row[name] for name in row if name.startswith("prompt")}
        empty = {n: value[:0] for n, value in row.items() if isinstance(value, np.ndarray)}
        row |= {**empty, **prompts}
    return Trace.from_rows(run=run_facts(num_generations=4), **rows)


def of_one_token():
    """One step, one prompt, one rollout of one token, one weight."""
    rows = healthy_rows(steps=1, prompts=1, generations=1)
    for row in rows["tokens"]:
        row |= {name: value[:1] for name, value in row.items() if isinstance(value, np.ndarray)}
    rows |= {"weights": rows["weights"][:1]}
    return Trace.from_rows(run=run_facts(num_generations=1), **rows)


EVERYTHING = [(table, column) for table in TABLES for column in columns_of(table)]
MISSING = {"nothing": None, "no number": math.nan}
EMPTY = {
    "no rows": lambda: Trace.from_rows(run=run_facts()),
    "not even settings": Trace.from_rows,
    "a log of nothing": lambda: log_of(None),
    "a log of no numbers": lambda: log_of(math.nan),
    **{
        f"{kind} anywhere": lambda value=value: changed(value, *EVERYTHING)
        for kind, value in MISSING.items()
    },
    **{
        f"{kind} in {table}": lambda value=value, table=table: changed(
            value, *((table, column) for column in columns_of(table))
        )
        for kind, value in MISSING.items()
        for table in TABLES
    },
    **{
        f"{kind} in {table}.{column}": lambda value=value, place=(table, column): changed(
            value, place
        )
        for kind, value in MISSING.items()
        for table, column in EVERYTHING
    },
}
CONSTANT = {
    **{
        f"{value} in {table}.{column}": lambda value=value, place=(table, column): changed(
            value, place
        )
        for value in (0, 1)
        for table, column in EVERYTHING
    },
    "0 everywhere": lambda: changed(0, *EVERYTHING),
    "1 everywhere": lambda: changed(1, *EVERYTHING),
    "a log of 0": lambda: log_of(0),
    "a log of 1": lambda: log_of(1),
    "one token": of_one_token,
    "no tokens": without_tokens,
}
NO_LOSS = {
    (finish, asked): lambda finish=finish, asked=asked: untrained(finish, asked=asked)
    for finish in ("answered", "eos", "turn_length", "length", "stop", "context", None)
    for asked in (False, True)
}
SAY_NO_NUMBER = {"H01", "H05", "H26"}
"""Whose business advantages, rewards and gradients that are no numbers are."""
SAY_NO_LOSS = {"H02", "H04", "H14"}
"""Whose business a run without a trained token is. Others may alarm about what the loss has no part
in, such as completions that are cut."""


def looked(look, at) -> Finding | None:
    """What is found; None where something is not recorded. Anything else that goes wrong is told as
    a defect of flatline, and means taken over nothing warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return look(at)
        except NotRecorded:
            return None


def assert_in_words(finding):
    if finding is None:
        return
    evidence = [one.text for one in finding.evidence]
    for text in (finding.text, finding.expected, finding.fix, *evidence):
        assert not NO_NUMBER.search(text), text


signs = each(
    "hypothesis", [one for one in HYPOTHESES if isinstance(one, HasSign)], ids=lambda one: one.id
)


@pytest.fixture(scope="module")
def traces():
    return {name: make() for name, make in (EMPTY | CONSTANT | NO_LOSS).items()}


@pytest.fixture(scope="module")
def sign_of(traces):
    """What a hypothesis finds in a trace, looked up once."""
    return cache(lambda hypothesis, name: looked(hypothesis.sign, traces[name]))


@signs
def test_what_is_missing_from_a_trace_raises_no_alarm(hypothesis, sign_of):
    for name in EMPTY:
        finding = sign_of(hypothesis, name)
        assert_in_words(finding)
        if finding is not None and finding.level in ALARMS:
            told = any(word in finding.text for word in ("no number", "not a number", "NaN"))
            assert hypothesis.id in SAY_NO_NUMBER and told, (name, finding)


@signs
def test_what_never_changes_in_a_trace_is_told_in_words(hypothesis, sign_of):
    for name in CONSTANT:
        assert_in_words(sign_of(hypothesis, name))


@signs
def test_a_trace_without_a_trained_token_is_an_alarm_of_its_cause_alone(hypothesis, sign_of):
    for name in NO_LOSS:
        finding = sign_of(hypothesis, name)
        assert_in_words(finding)
        if finding is not None and finding.level is Level.FAULT:
            assert hypothesis.id in SAY_NO_LOSS, (name, finding.text)


# -- all-clears


LONG = {**SIZE, "steps": 12}
MUST_SEE = {
    "H01": ["rollouts.reward"],
    "H02": ["tokens.author", "tokens.trained"],
    "H03": ["steps.kl"], "H04": ["rollouts.finish"],
    "H05": ["rollouts.reward", "rollouts.parts"],
    "H06": ["tokens.author", "tokens.trained", "tokens.sampler", "tokens.trainer"],
    "H07": ["tokens.author", "tokens.trained"],
    "H08": ["rollouts.reward", "steps.heldout_reward"],
    "H09": ["tokens.trained"],
    "H10": ["rollouts.as_sampled+tokens.sampler", "rollouts.as_sampled+tokens.trainer"],
    "H11": ["rollouts.as_sampled+tokens.sampler", "rollouts.as_sampled+tokens.trainer"],
    "H12": ["rollouts.as_sampled"],
    "H13": ["rollouts.finish", "rollouts.completion_tokens"],
    "H14": ["rollouts.finish", "rollouts.trained_tokens"],
    "H15": ["rollouts.prompt_tokens", "tokens.sampler", "tokens.trainer"],
    "H17": ["rollouts.weight_version"],
    "H19": ["steps.logprob_gap"],
    "H20": ["tokens.author", "tokens.trained", "tokens.sampler", "tokens.trainer"],
    "H21": ["tokens.author", "tokens.trained", "tokens.sampler", "tokens.trainer"],
    "H24": ["rollouts.reward"], "H25": ["weights.changed_share"], "H26": ["weights.update_norm"],
    "H27": ["steps.grad_norm", "weights.size"],
    "H29": ["steps.ratio_max"], "H30": ["steps.entropy"],
    "H31": ["steps.kl", "rollouts.advantage"],
    "H32": ["rollouts.reward"], "H33": ["rollouts.prompt_id"],
    "H35": ["rollouts.reward", "rollouts.advantage", "rollouts.model_tokens"],
    "H36": ["rollouts.reward", "rollouts.parts", "rollouts.supporting_seen"],
    "H37": ["rollouts.reward", "rollouts.parts"],
    "H38": ["rollouts.parts"],
    "H39": ["rollouts.completion", "rollouts.gold"],
    "H40": ["rollouts.hops", "rollouts.reward", "rollouts.parts"],
    "H41": ["rollouts.tool_calls", "rollouts.tool_errors+rollouts.malformed_calls"],
    "H42": ["rollouts.finish"], "H43": ["rollouts.tool_calls"], "H44": ["rollouts.hops"],
    "H45": ["rollouts.parts"], "H47": ["rollouts.reward"],
    "H48": ["rollouts.reward", "steps.metrics"],
    "H60": ["rollouts.prompt_id"], "H63": ["steps.logprob_gap"],
    "H65": ["rollouts.trained_tokens"],
    "H68": ["rollouts.reward", "rollouts.completion"],
}  # fmt: skip
"""What each hypothesis must have seen before it rules itself out in a healthy run: any of these
alone, or those joined by a plus together, is missing, and there is no all-clear."""
OF_IDS = {"H16": "ids of prompts", "H34": "ids of completions"}
"""Signs that look at ids alone, without which there is no trace of tokens."""
BY_SETTING = {"H18": "lora", "H22": "engine"}
"""Signs that a setting of the healthy run excludes."""
ELSEWHERE = {
    "H23": "test_h23",
    "H28": "test_h28",
    "H46": "test_h46",
    "H61": "test_h61",
    **dict.fromkeys(("H51", "H52", "H53", "H54", "H55", "H58"), "test_recorded_steps"),
}
"""Signs that the healthy run does not show enough to, and where they are shown it."""


def rich(value=None, *places):
    """A longer healthy run of rollouts that differ in length and in what they found."""
    rows = healthy_rows(**LONG)
    for row in rows["rollouts"]:
        right = row["parts"]["exact_match"]
        row |= {"model_tokens": 4 + row["rollout"] % 5, "supporting_seen": 1 + int(right)}
    for table, column in places:
        for row in rows[table]:
            if column in row:
                row[column] = with_value(value, row[column])
    return Trace.from_rows(run=run_facts(num_generations=4), **rows)


def is_clear(finding):
    return finding is not None and finding.level is Level.OK


@signs
def test_an_all_clear_has_looked_at_something_or_a_recorded_setting_excludes_it(
    hypothesis, traces, sign_of
):
    for name, trace in traces.items():
        finding = sign_of(hypothesis, name)
        if is_clear(finding) and finding.excluded_by:
            assert finding.excluded_by in trace.settings, (name, finding)
        elif is_clear(finding):
            assert finding.looked_at > 0, (name, finding)


@signs
def test_what_a_hypothesis_must_see_is_written_down(hypothesis):
    places = [MUST_SEE, OF_IDS, BY_SETTING, ELSEWHERE]
    assert [hypothesis.id in place for place in places].count(True) == 1
    if hypothesis.id not in ELSEWHERE:
        found = looked(hypothesis.sign, rich())
        assert is_clear(found), found
        assert found.excluded_by == BY_SETTING.get(hypothesis.id, found.excluded_by)


@each("kind", MISSING)
@each("code", MUST_SEE)
def test_without_what_it_must_see_no_hypothesis_gives_an_all_clear(code, kind):
    hypothesis = next(one for one in HYPOTHESES if one.id == code)
    for together in MUST_SEE[code]:
        places = [tuple(place.split(".")) for place in together.split("+")]
        finding = looked(hypothesis.sign, rich(MISSING[kind], *places))
        assert not is_clear(finding), (together, finding)


@signs
def test_settings_that_were_not_recorded_exclude_nothing(hypothesis):
    rows = healthy_rows(**SIZE)
    unsaid = Trace.from_rows(run={"source": "recorder", "settings": {}}, **rows)
    finding = looked(hypothesis.sign, unsaid)
    assert not is_clear(finding) or not finding.excluded_by, finding


@signs
def test_a_trace_of_nothing_but_settings_is_no_all_clear(hypothesis):
    finding = looked(hypothesis.sign, Trace.from_rows(run=run_facts()))
    assert not is_clear(finding) or finding.excluded_by, finding


# -- live trainers


GIVEN = {"scale": 0.01, "further": 10.0, "lr_scale": 1.0}
"""What a measurement is taken at, rather than what it finds."""


def record(kind: type, length: int, value: float) -> Any:
    """A measurement whose arrays have `length` entries, and whose numbers are all `value`."""
    hints = get_type_hints(kind)
    return kind(
        **{one.name: _filled(hints[one.name], one.name, length, value) for one in fields(kind)}
    )


def _filled(kind: Any, name: str, length: int, value: float) -> Any:
    whole = 0 if math.isnan(value) else int(value)
    scalars = {float: value, int: whole, bool: bool(value), str: "prompt"}
    if name in GIVEN:
        return GIVEN[name]
    if kind in scalars:
        return scalars[kind]
    if kind in (records.Floats, records.Ints, records.Bools, records.Texts):
        held = {records.Floats: value, records.Ints: whole, records.Bools: bool(value)}
        return np.full(length, held.get(kind, "p"))
    if name in ("names", "kinds"):
        return ("weight",) * length
    if is_dataclass(kind):
        return record(kind, length, value)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return () if Ellipsis in parts else tuple(_filled(p, name, length, value) for p in parts)
    if get_origin(kind) is dict:
        return {}
    return _filled(get_args(kind)[0], name, length, value)


def live(length: int, value: float, trace: Trace) -> Any:
    """What a probe sees of a trainer that gives nothing but this, whatever is measured of it."""

    def give(kind: Any) -> Any:
        return lambda *_, **__: _filled(kind, "", length, value)

    kinds = {
        name: get_type_hints(method).get("return")
        for name, method in vars(Subject).items()
        if callable(method) and not name.startswith("_")
    }
    measured = {n: give(kind) for n, kind in kinds.items() if get_origin(kind) is not Iterator}
    # Stages are judged where they are measured: over nothing they are unknown (test_departure).
    measured["departures"] = lambda: {one: unknown(one, "Nothing was sampled.") for one in STAGES}
    return SimpleNamespace(
        epsilon_high=value,
        planned_steps=None,
        ours=False,
        requested=None,
        effective=None,
        settings=dict(run_facts()["settings"]),
        trace=trace,
        batch=record(records.Batch, length, value),
        **measured,
    )


OF_NO_NUMBERS = {"H12", "H15", "H17", "H33", "H42", "H46"}
"""Probes that look at texts, names or whole numbers, which are there where others are not."""
probes = each(
    "hypothesis", [one for one in HYPOTHESES if isinstance(one, HasProbe)], ids=lambda one: one.id
)


@probes
@each("length", [0, 1, 8])
def test_measurements_of_a_live_trainer_that_are_no_numbers_raise_no_alarm(hypothesis, length):
    finding = looked(hypothesis.probe, live(length, math.nan, Trace.from_rows(run=run_facts())))
    assert_in_words(finding)
    assert finding is None or finding.level not in ALARMS, finding.text
    assert not is_clear(finding) or finding.excluded_by or hypothesis.id in OF_NO_NUMBERS, finding


@probes
@each("length", [0, 1, 8])
@each("value", [0.0, 1.0])
def test_measurements_of_a_live_trainer_that_never_change_are_told_in_words(
    hypothesis, length, value
):
    found = looked(hypothesis.probe, live(length, value, Trace.from_rows(run=run_facts())))
    assert_in_words(found)


# -- rollouts without loss beside others


def test_log_probs_of_rollouts_without_loss_are_no_noise():
    rows = healthy_rows(**SIZE)
    for rollout, row in zip(rows["rollouts"], rows["tokens"], strict=True):
        row["prompt_ids"] = np.full(6, rollout["group"])
        row["ids"] = np.arange(len(row["ids"]))
        row["trainer"] = np.full(len(row["ids"]), -1.0)
        if rollout["rollout"] % 2:  # TRL hides the completion of what it leaves out
            row["trainer"], row["trained"] = row["trainer"] - 3.3, row["trained"] * 0
    left_out = Trace.from_rows(run=run_facts(num_generations=4), **rows)
    assert prefix_spread(left_out, [1, 2]).value == 0
    for row in rows["tokens"]:
        row["trained"] = row["trained"] * 0 + 1
    trained = Trace.from_rows(run=run_facts(num_generations=4), **rows)
    assert prefix_spread(trained, [1, 2]).value == pytest.approx(3.3)
