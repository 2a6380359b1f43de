"""Tokens of the chat format that a model cannot write, because their output rows are shared."""

from types import SimpleNamespace

import pytest

from flatline.errors import ModelError
from flatline.hypotheses import find
from flatline.hypotheses.base import Level
from flatline.live.records import TokenizerFit
from flatline.rollout.chat import ChatFormat, load_chat_template
from flatline.rollout.writable import unwritable
from flatline.tasks import make_task
from flatline.trace import Trace
from flatline.training.models import load_policy
from flatline.training.warmstart_checks import refuse_unwritable_tokens
from tests.traces import healthy_rows, run_facts

TOOLS = make_task("musique").tools


@pytest.fixture
def policy():
    """The lab policy, which spells calls in plain tokens, with tokens for them."""
    found = load_policy("lab")
    found.tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    found.model.resize_token_embeddings(len(found.tokenizer))
    found.model.get_output_embeddings().weight.data.normal_()
    return found


def chat_of(policy, template="hermes"):
    return ChatFormat(policy.tokenizer, TOOLS, template=load_chat_template(template))


def share_rows(policy, chat, *texts):
    """Rows as they are where nobody trained them."""
    weight = policy.model.get_output_embeddings().weight.data
    ids = chat.written_tokens()
    for text in texts:
        weight[ids[text]] = weight[7]


def test_rows_of_their_own_can_be_written(policy):
    chat = chat_of(policy)
    assert set(chat.written_tokens()) >= {"<tool_call>", "</tool_call>", "<|im_end|>"}
    assert unwritable(policy.model, chat) == {}


def test_a_token_that_shares_its_row_is_named_with_the_number_of_others(policy):
    chat = chat_of(policy)
    share_rows(policy, chat, "<tool_call>")
    assert unwritable(policy.model, chat) == {"<tool_call>": 1}
    share_rows(policy, chat, "<tool_call>", "</tool_call>")
    assert unwritable(policy.model, chat) == {"<tool_call>": 2, "</tool_call>": 2}


def test_calls_in_plain_json_need_no_token_but_the_end(policy):
    chat = chat_of(policy, "json")
    assert set(chat.written_tokens()) == {"<|im_end|>"}


def test_a_warm_start_that_could_not_teach_a_call_is_refused(policy):
    chat = chat_of(policy)
    refuse_unwritable_tokens(policy.model, chat)
    share_rows(policy, chat, "<tool_call>")
    with pytest.raises(ModelError, match=r"'<tool_call>' \(1 others\)[\s\S]*--chat-template json"):
        refuse_unwritable_tokens(policy.model, chat)


def called(calls):
    """A step whose first rollout has so many calls."""
    rows = healthy_rows(steps=1)
    for row in rows["rollouts"]:
        row["tool_calls"] = calls if row["rollout"] == 0 else 0
    return rows


@pytest.mark.parametrize(("calls", "level"), [(0, Level.FAULT), (3, Level.NOTE)])
def test_h16_tells_a_call_that_cannot_be_written(calls, level, monkeypatch):
    h16 = find("H16")
    healthy = SimpleNamespace(level=Level.OK)
    monkeypatch.setattr(type(h16), "sign", lambda self, trace: healthy)
    fit = TokenizerFit(rows=9, highest_id=0, doubled="", drops_thinking=None)
    subject = SimpleNamespace(
        trace=Trace.from_rows(run=run_facts(), **called(calls)),
        unwritable_tokens=lambda: {"<tool_call>": 297},
        tokenizer_fit=lambda: fit,
    )
    finding = h16.probe(subject)
    assert finding.level is level
    assert "<tool_call> (297 others)" in finding.text
