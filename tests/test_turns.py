"""What stands between the turns of a completion, and what reward functions read of it."""

from types import SimpleNamespace

import pytest

from flatline.live.trl.departure.turns import judge_turns
from flatline.spec.prompts import reply_ids

CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
REPLY = {"role": "tool", "name": "add", "content": "3"}
END = {"role": "assistant", "content": "it is 3"}
EOS = 0


class Words:
    """A token for every word; a turn is its role, what it says, and the end."""

    eos_token_id = EOS

    def apply_chat_template(self, messages, add_generation_prompt, **_):
        turns = [[1 + len(one["role"]), *map(ord, one["content"]), EOS, 99] for one in messages]
        return [token for turn in turns for token in turn] + [77] * add_generation_prompt

    def decode(self, ids):
        return " ".join(map(str, ids))


def judged(ids, mask, messages, tools=(print,), **args):
    told = {"max_completion_length": 40, "max_tool_calling_iterations": 4, **args}
    trainer = SimpleNamespace(
        tools=tools,
        processing_class=Words(),
        args=SimpleNamespace(**told),
        _get_tool_suffix_ids=print,
    )
    return judge_turns(trainer, ([[5]] * len(ids), ids, mask, messages))


GIVEN = reply_ids(Words(), [REPLY], None, {})
IDS, MASK = [3, EOS, *GIVEN, 8, EOS], [1, 1, *[0] * len(GIVEN), 1, 1]


ONE, TWO = ([IDS], [MASK]), ([IDS, IDS], [MASK, MASK])
SHORT = ([IDS[:2] + IDS[3:]], [MASK[:2] + MASK[3:]])
CALLS = ([[3, EOS]] * 3, [[1, 1]] * 3)
ANSWERED, AGAIN = [CALL, REPLY, END], [CALL, REPLY, CALL]
FULL = len(IDS) + len(GIVEN)
TWICE = reply_ids(Words(), [REPLY, REPLY], None, {})  # to one turn: one time
BOTH = ([[3, EOS, *TWICE, 8, EOS]], [[1, 1, *[0] * len(TWICE), 1, 1]])


def leave(times):
    return {"max_tool_calling_iterations": times}


def test_a_reply_is_what_the_template_renders_behind_the_end_of_the_call():
    assert [99, 5, ord("3"), EOS, 99, 77] == GIVEN


@pytest.mark.parametrize(
    ("plays", "rows", "args", "told"),
    [
        (ONE, [ANSWERED], {}, None),
        (SHORT, [ANSWERED], {}, "6 tokens expected, 5 found"),
        (ONE, [[CALL, END]], {}, "1 tool replies in what is trained, and 0 in the messages"),
        (CALLS, [[CALL]] * 3, {}, "3 rows call a tool, and none gets a reply"),
        (CALLS, [[CALL]] * 3, leave(0), None),
        (CALLS, [[CALL]] * 3, {"max_completion_length": 3}, None),
        (TWO, [ANSWERED, AGAIN], {}, "row 1 makes tool call 2 and gets no reply"),
        (TWO, [ANSWERED, AGAIN], leave(1), None),
        (TWO, [ANSWERED, AGAIN], {"max_completion_length": FULL}, None),
        (
            ([IDS, [3, EOS]], [MASK, [1, 1]]),
            [ANSWERED, [END]],
            leave(0),
            "1 of 2 rows get more replies of tools than were asked for: up to 1",
        ),
        (ONE, [ANSWERED], leave(1), None),
        (ONE, [ANSWERED], leave(None), None),
        (BOTH, [[CALL, REPLY, REPLY, END]], leave(1), None),
    ],
)
def test_replies_depart_where_they_are_not_those_that_the_calls_leave_and_room_give(
    plays, rows, args, told
):
    found = judged(*plays, rows, **args)
    if told is None:
        assert found is None
    else:
        assert found.departs and found.stage == "completions" and told in found.text


def shout(a):
    return "A" * a


def test_a_later_call_whose_reply_would_not_fit_is_rightly_left_alone():
    def asked(length):
        function = {"name": "shout", "arguments": {"a": length}}
        last = {**CALL, "tool_calls": [{"type": "function", "function": function}]}
        rows = [[CALL, REPLY, END], [CALL, REPLY, last]]
        return judged([IDS, IDS], [MASK, MASK], rows, tools=[shout])

    assert "row 1 makes tool call 2 and gets no reply" in asked(3).text
    assert asked(300) is None


def test_no_tool_is_called_by_hand_where_there_is_no_leave_or_room_for_a_reply():
    called = []

    def note(a):
        called.append(a)

    function = {"name": "note", "arguments": {"a": 1}}
    last = {**CALL, "tool_calls": [{"type": "function", "function": function}]}
    two = ([IDS, IDS], [MASK, MASK], [[CALL, REPLY, END], [CALL, REPLY, last]])
    assert judged(*two, tools=[note], max_tool_calling_iterations=1) is None
    assert judged(*two, tools=[note], max_completion_length=len(IDS) + len(GIVEN)) is None
    assert not called


def add(a, b):
    return a + b


def asks(**arguments):
    function = {"name": "add", "arguments": arguments}
    return {**CALL, "tool_calls": [{"type": "function", "function": function}]}


def played(call, *replies):
    """Three rows that call once, and what is said of them."""
    given = reply_ids(Words(), replies, None, {})
    ids, mask = [3, EOS, *given, 8, EOS], [1, 1, *[0] * len(given), 1, 1]
    rows = [[call, *replies, END]] * 3
    return judged([ids] * 3, [mask] * 3, rows, tools=[add], max_completion_length=400)


def test_a_reply_that_bears_another_name_than_the_call_departs():
    told = played(asks(a=1, b=2), {"role": "tool", "name": "type", "content": "function"})
    assert told.row == 0 and "bears another name: 'type'" in told.text
    assert played(asks(a=1, b=2), REPLY) is None


def test_calls_that_all_fail_depart_where_the_tool_does_answer_them():
    failed = {**REPLY, "content": "{'error': 'Tool add not found.'}"}
    told = played(asks(a=1, b=2), failed)
    assert told.departs and "all 3 calls get an error for a reply" in told.text
    assert played(asks(a=1), failed) is None  # by hand, too
