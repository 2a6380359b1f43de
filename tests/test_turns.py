"""What stands between the turns of a completion, and what reward functions read of it."""

from types import SimpleNamespace

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


def test_a_reply_is_what_the_template_renders_behind_the_end_of_the_call():
    assert [99, 5, ord("3"), EOS, 99, 77] == GIVEN
    assert judged([IDS], [MASK], [[CALL, REPLY, END]]) is None


def test_a_reply_with_a_token_too_few_departs():
    short = judged([IDS[:2] + IDS[3:]], [MASK[:2] + MASK[3:]], [[CALL, REPLY, END]])
    assert short.departs and "6 tokens expected, 5 found" in short.text


def test_a_reply_that_reward_functions_never_read_departs():
    told = judged([IDS], [MASK], [[CALL, END]])
    assert "1 tool replies in what is trained, and 0 in the messages" in told.text


def test_calls_that_nobody_answers_depart_where_there_is_room_and_leave():
    alone = ([[3, EOS]] * 3, [[1, 1]] * 3, [[CALL]] * 3)
    assert "3 rows call a tool, and none gets a reply" in judged(*alone).text
    assert judged(*alone, max_tool_calling_iterations=0) is None
    assert judged(*alone, max_completion_length=3) is None


def test_a_later_call_without_a_reply_departs_where_there_is_room_and_leave():
    two = ([IDS, IDS], [MASK, MASK], [[CALL, REPLY, END], [CALL, REPLY, CALL]])
    assert "row 1 makes tool call 2 and gets no reply" in judged(*two).text
    assert judged(*two, max_tool_calling_iterations=1) is None
    assert judged(*two, max_completion_length=len(IDS) + len(GIVEN)) is None


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


def test_a_reply_that_there_is_no_leave_for_departs():
    one = ([IDS, [3, EOS]], [MASK, [1, 1]], [[CALL, REPLY, END], [END]])
    told = judged(*one, max_tool_calling_iterations=0)
    assert told.departs and told.stage == "completions"
    assert "1 of 2 rows get more replies of tools than were asked for: up to 1" in told.text
    assert judged(*one, max_tool_calling_iterations=1) is None
    assert judged([IDS], [MASK], [[CALL, REPLY, END]], max_tool_calling_iterations=None) is None


def test_several_replies_to_one_turn_are_one_time():
    given = reply_ids(Words(), [REPLY, REPLY], None, {})
    ids, mask = [3, EOS, *given, 8, EOS], [1, 1, *[0] * len(given), 1, 1]
    assert judged([ids], [mask], [[CALL, REPLY, REPLY, END]], max_tool_calling_iterations=1) is None


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
