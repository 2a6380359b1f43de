"""One rollout on a page: turns, tokens, and what a hostile model cannot do with either."""

import time

import numpy as np
import pytest

from flatline.errors import TraceError
from flatline.report.compare import fork, parting, settings_that_differ
from flatline.report.conversation import turns_of
from flatline.report.rollout_view import PAGE, render_rollout, rollout_data
from flatline.rollout.record import Author
from flatline.trace import Trace
from tests.traces import PIECE, healthy_rows, healthy_trace, run_facts
from tests.web_runs import hostile_rows

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call><|im_end|>'
FOUND = (
    "<tool_response>\nDocument ID: 3\n# Oslo\nOslo is large.\nDocument ID: 4\n# Rome\nIt burns.\n"
)
PROMPT = "<|im_start|>system\nAnswer.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n"


def trace_of(rows) -> Trace:
    return Trace.from_rows(run=run_facts(), **rows)


def test_a_conversation_is_cut_where_another_author_writes_on():
    said = [(Author.MODEL, CALL), (Author.TEMPLATE, "\n"), (Author.TOOL, FOUND)]
    said += [(Author.MODEL, "<think>Hm</think><cite>3</cite><answer>Oslo</answer>")]
    turns = turns_of(PROMPT, said, "Oslo")
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]
    call, documents = turns[2].blocks[0], turns[3].blocks
    assert (call.kind, call.title, call.text) == ("call", "search", '{"query": "x"}')
    assert [one.title for one in documents] == ["document 3", "document 4"]
    assert [one.marks for one in documents] == [("has the gold answer", "cited"), ()]
    assert [one.kind for one in turns[4].blocks] == ["thinking", "citation", "answer"]


def test_without_authors_the_marks_of_the_template_cut_it():
    text = f"{CALL}\n<|im_start|>user\n{FOUND}</tool_response><|im_end|>\n<answer>Rome</answer>"
    roles = [turn.role for turn in turns_of("", [(None, text)], None)]
    assert roles == ["assistant", "tool", "assistant"]


def test_a_call_that_cannot_be_read_says_why():
    (turn,) = turns_of("", [(Author.MODEL, "<tool_call>{oops}</tool_call>")], None)
    assert turn.blocks[0].kind == "bad-call"
    assert "JSON" in turn.blocks[0].marks[0]


@pytest.mark.parametrize("text", ["<think>" * 40_000, "<tool_call>" * 40_000, "<" * 500_000])
def test_a_turn_is_cut_in_time_that_grows_with_its_length(text):
    began = time.monotonic()
    turns_of(text, [(Author.MODEL, text), (Author.TOOL, text), (None, text)], "gold")
    assert time.monotonic() - began < 5


def test_what_a_tool_wrote_has_no_log_prob_of_the_sampler():
    data = rollout_data(healthy_trace(steps=1), 1, 0)["tokens"]["data"]["numbers"]
    written = [author is Author.MODEL for author in PIECE]
    assert [value is not None for value in data["sampler"]] == written
    assert [value is not None for value in data["difference"]] == written


def test_the_worst_disagreement_comes_first():
    rows = healthy_rows(steps=1)
    trainer = np.array(rows["tokens"][0]["sampler"])
    trainer[[1, 3]] -= (2.0, 9.0)
    rows["tokens"][0]["trainer"] = trainer
    number = rows["tokens"][0]["rollout"]
    assert rollout_data(trace_of(rows), 1, number)["tokens"]["worst"][:2] == [3, 1]


def test_a_prompt_that_the_trainer_did_not_see_is_marked():
    rows = healthy_rows(steps=1)
    rows["tokens"][0]["prompt_attended"] = np.array([0, 0, 1, 1, 1, 1], np.uint8)
    shown = render_rollout(trace_of(rows), 1, rows["tokens"][0]["rollout"])
    assert "prompt, hidden from the trainer" in shown
    assert [hidden for hidden, _ in rollout_data(trace_of(rows), 1, 0)["prompt_runs"]] == [1, 0]


def test_a_step_without_tokens_is_shown_as_text_and_says_so():
    rows = healthy_rows(steps=2)
    rows["tokens"] = [row for row in rows["tokens"] if row["step"] == 2]
    shown = render_rollout(trace_of(rows), 1, 0)
    assert "No token detail was recorded for this step; steps that have it: 2." in shown
    assert "Who wrote it?" in shown


def test_a_run_without_any_tokens_says_how_to_record_them():
    rows = healthy_rows(steps=1) | {"tokens": []}
    assert "flatline.attach(trainer, run_dir)" in render_rollout(trace_of(rows), 1, 0)


def test_a_column_that_was_not_recorded_is_named_and_cannot_be_chosen():
    rows = healthy_rows(steps=1)
    for row in rows["tokens"]:
        del row["reference"]
    tokens = rollout_data(trace_of(rows), 1, 0)["tokens"]
    assert "reference" not in dict(tokens["modes"])
    assert tokens["missing"] == ["reference log-prob"]


def test_an_unknown_rollout_is_an_error_that_says_what_there_is():
    with pytest.raises(TraceError, match="Step 1 has no rollout 99: it has 64 rollouts"):
        rollout_data(healthy_trace(steps=1), 1, 99)


def test_a_long_completion_is_shown_in_pages():
    rows = healthy_rows(steps=1, prompts=1, generations=2)
    times = PAGE // len(PIECE) + 1
    for name, value in list(rows["tokens"][0].items()):
        if isinstance(value, np.ndarray) and not name.startswith("prompt"):
            rows["tokens"][0][name] = np.tile(value, times)
    trace = trace_of(rows)
    first, second = (rollout_data(trace, 1, 0, first=at)["tokens"] for at in (0, PAGE + 3))
    assert (first["first"], first["last"]) == (0, PAGE)
    assert (second["first"], second["last"]) == (PAGE, times * len(PIECE))
    assert len(second["spans"]) == len(second["data"]["numbers"]["id"])


def test_hostile_text_is_only_ever_text():
    shown = str(render_rollout(trace_of(hostile_rows()), 1, 0))
    assert "<script>window" not in shown and "<img" not in shown and "<svg" not in shown
    assert "{{7*7}}" in shown, "a template is not filled in twice"
    assert "\u202e" not in shown and "\x00" not in shown and "\x1b" not in shown
    assert "\\u202e" in shown
    assert len(shown) < 2**20, "a megabyte of text is shortened"


def test_two_runs_that_do_not_differ_hardly_ever_part():
    pairs = [
        (healthy_trace(seed=2 * i, steps=12), healthy_trace(seed=2 * i + 1, steps=12))
        for i in range(12)
    ]
    parted = sum(parting(a, b).step is not None for a, b in pairs)
    assert parted <= 2, f"{parted} of 12 pairs, where one in twenty is the promise"


def test_two_runs_part_after_the_better_one_climbs():
    flat, climbing = (healthy_trace(seed=i, steps=30, gain=g) for i, g in ((0, 0.0), (1, 0.5)))
    found = parting(flat, climbing)
    assert found.step is not None and 3 < found.step < 30
    assert found.difference.low > 0
    assert f"By step {found.step} the second run earns more" in found.text


def test_a_run_does_not_part_from_itself():
    trace = healthy_trace()
    assert parting(trace, trace).step is None


def test_runs_without_a_common_step_cannot_be_compared():
    rows = healthy_rows(steps=2)
    late = {
        name: [{**row, "step": row["step"] + 10} if "step" in row else row for row in found]
        for name, found in rows.items()
    }
    assert parting(trace_of(rows), trace_of(late)) is None


def test_only_settings_that_differ_are_listed():
    a, b = healthy_trace(steps=1), healthy_trace(steps=1, beta=0.5)
    assert settings_that_differ(a, b) == [("settings.beta", 0.04, 0.5)]


def test_two_rollouts_fork_at_their_first_other_token():
    rows = healthy_rows(steps=1)
    other = {**rows["tokens"][1], "ids": np.array(rows["tokens"][0]["ids"])}
    other["prompt_ids"] = rows["tokens"][0]["prompt_ids"]
    other["ids"][5] += 1
    rows["tokens"][1] = other
    trace = trace_of(rows)
    found = fork(trace, trace, (1, 0), (1, 1))
    assert (found.where, found.at) == ("completion", 5)
    assert [text for here, text in found.sides[0] if here] == [
        trace.text(rows["tokens"][0]["ids"][5])
    ]
    assert fork(trace, trace, (1, 0), (1, 0)) is None
