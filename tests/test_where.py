"""From a wrong value back to the line that made it, on small pieces of code."""

import importlib.util
import re
import sys
from inspect import signature
from types import SimpleNamespace

import pytest
import torch

from flatline.hypotheses.base import Finding, Level
from flatline.hypotheses.departure import placed
from flatline.hypotheses.h49_prompts_depart import PromptsDepart
from flatline.live.stage_found import StageFound
from flatline.live.where.attributes import named_by_callers, with_what_was_set
from flatline.live.where.place import Where
from flatline.live.where.ranking import Trail
from flatline.live.where.specified import Right, Specified
from flatline.live.where.statements import statements
from flatline.live.where.tracing import CannotFollow, Follower
from flatline.live.where.values import MOST, Copies

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="a debugger or coverage is following the code already"
)
REWARDS = torch.tensor([1.0, 3.0, 2.0, 6.0])
MEANS = torch.tensor([2.0, 2.0, 4.0, 4.0]).double()
RIGHT = [Specified("rewards", REWARDS.double()), Specified("means", MEANS)]


@pytest.fixture
def written(tmp_path):
    """A module with the given text, as a user would have written it."""

    def load(text):
        file = tmp_path / "theirs.py"
        file.write_text(f"import torch\n{text}")
        statements.cache_clear()
        spec = importlib.util.spec_from_file_location("theirs", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def lines_behind(act, right=RIGHT):
    """Sources of the statements behind what `act` returns, the likeliest first."""
    follower = Follower()
    with follower.following():
        wrong = act()
    trail = Trail(follower.events, Right(right, 1e-3))
    return [one.statement.source for one in trail.ranked([follower.copies.of(wrong)])]


GIVEN = {"rewards": REWARDS, "means": MEANS.float()}
MADE = """
def mean_of(values, group):
    found = values.view(-1, group).mean(1)
    return found.repeat_interleave(group)
"""
FOLLOWED = {
    "right values in and a wrong one out": """
def advantages(rewards):
    means = rewards.view(-1, 2).mean(1).repeat_interleave(2)
    centred = rewards + means  # 1
    scaled = centred / 2  # 9
    return scaled
""",
    "a condition that skips a step": """
def advantages(rewards, scale=False):
    means = rewards.view(-1, 2).mean(1).repeat_interleave(2)
    if scale:  # 1
        means = means / 2
    return means
""",
    "a helper that is right elsewhere": f"""{MADE}
def advantages(rewards):
    logged = mean_of(rewards, 2)
    baseline = mean_of(rewards, 4)  # 1
    return baseline
""",
    "a lambda that only hands on": f"""{MADE.replace("mean(1)", "mean(1)  # 1")}
def advantages(rewards):
    logged = mean_of(rewards, 2)
    ask = lambda group: mean_of(rewards, group)  # 9
    return ask(4)
""",
    "a tuple that also holds what is no data": """
def pay(rewards):
    rolled = rewards.roll(1)  # 1
    return rolled, {}, object()
def advantages(rewards):
    paid, _, _ = pay(rewards)
    return paid
""",
    "a with around a return": """
import contextlib
def made(rewards):
    wrong = rewards + 7  # 1
    return wrong
def wrapper(rewards):
    with contextlib.nullcontext():
        return made(rewards)
def outer(rewards):
    found = wrapper(rewards)
    return found
""",
    "the condition that chose a statement over another": """
def advantages(rewards, scale="group"):
    means = rewards.view(-1, 2).mean(1).repeat_interleave(2)
    if scale != "none":  # 3
        centred = rewards - 3 * means
    else:
        centred = rewards - means
    half = centred / 2
    return half
""",
    "a turn of a loop that is left early": """
def centred(rewards):
    found = rewards + 0
    for _ in range(2):
        if rewards.any():  # 5
            continue
        found = found - rewards.view(-1, 2).mean(1).repeat_interleave(2)
    return found
""",
    "a constant where a right value was scaled: the product is a specified value too": """
def advantages(rewards, means):
    centred = 1  # 4
    centred = centred * means
    wrong = rewards + 5 * centred  # 1
    return wrong
""",
    "what tokenizers give": """
from collections import UserDict
def prompts(rewards):
    told = UserDict(ids=rewards + 7)  # 1
    ids = told["ids"]
    return ids
""",
    "a second name for a value": """
def advantages(rewards, means):
    centred = means  # 3
    left = centred  # 2
    scaled = left / 2  # 1
    return scaled
""",
}
"""Code whose last function returns a wrong value; behind a line stands how likely it must be."""


@pytest.mark.parametrize("text", FOLLOWED.values(), ids=FOLLOWED)
def test_a_wrong_value_is_followed_to_the_lines_that_made_it(written, text):
    expected = {line.strip(): int(place) for line, place in re.findall(r"(.*)  # (\d)", text)}
    theirs = written(re.sub(r"  # \d", "", text))
    act = getattr(theirs, re.findall(r"^def (\w+)", text, re.MULTILINE)[-1])
    asked = [GIVEN[name] for name in signature(act).parameters if name in GIVEN]
    found = lines_behind(lambda: act(*asked))
    assert expected
    for line, place in expected.items():
        assert line in found[:place], found


def test_a_value_is_followed_through_dicts_and_attributes(written):
    theirs = written(
        "class Trainer:\n"
        "    def paid(self, rewards):\n"
        "        self.kept = {'rewards': rewards.roll(1)}\n"
        "    def batch(self):\n"
        "        return {'advantages': self.kept['rewards']}\n"
    )
    trainer = theirs.Trainer()

    def act():
        trainer.paid(REWARDS)
        return trainer.batch()["advantages"]

    assert lines_behind(act)[0] == "self.kept = {'rewards': rewards.roll(1)}"


def test_a_wrong_sign_is_seen_where_the_value_is_zero(written):
    theirs = written(
        "def loss(logps):\n"
        "    ratio = logps.detach() - logps\n"
        "    kept = ratio * 1\n"
        "    return kept\n"
    )
    logps = torch.tensor([-1.0, -2.0], requires_grad=True)
    follower = Follower()
    follower.copies.leaf = logps
    with follower.following():
        wrong = theirs.loss(logps)
    slope = torch.cos(torch.arange(2.0).double())
    right = [
        Specified("log-ratio", torch.zeros(2).double(), slope=slope),
        Specified("log-probs", logps.detach().double(), slope=slope),
    ]
    trail = Trail(follower.events, Right(right, 1e-3))
    first = trail.ranked([follower.copies.of(wrong)])[0]
    assert first.statement.source == "ratio = logps.detach() - logps"


def test_who_set_an_attribute_comes_behind_its_reader_unless_it_is_not_what_was_asked_for(written):
    theirs = written(
        "class Mine:\n"
        "    def __init__(self):\n"
        "        self.low, self.high = 0.3, 0.2\n"
        "    def clip(self, ratio):\n"
        "        return ratio.clamp(1 - self.low, 1 + self.high)\n"
    )
    mine, follower = theirs.Mine(), Follower()
    with follower.following():
        mine.clip(REWARDS)
    for differs, order in ((False, ("clip", "__init__")), (True, ("__init__", "clip"))):
        found = with_what_was_set(mine, follower.events, lambda name, differs=differs: differs)
        told = {function: statement.source for statement, function in found}
        assert list(told) == [f"Mine.{name}" for name in order]
        assert told["Mine.__init__"] == "self.low, self.high = 0.3, 0.2"


def test_a_generator_and_a_loop_are_followed_to_their_ends(written):
    theirs = written(
        "def rows(count):\n"
        "    for row in range(count):\n"
        "        yield row\n"
        "def total(count):\n"
        "    return sum(rows(count))\n"
    )
    follower = Follower()
    with follower.following():
        assert theirs.total(5000) == 12497500
    assert 100 < len(follower.events) < 1000, "a long loop is not recorded whole"


def test_nothing_is_followed_beside_another_trace_function():
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        with pytest.raises(CannotFollow, match="debugger"), Follower().following():
            pass
    finally:
        sys.settrace(before)


def test_what_fails_inside_leaves_no_trace_function_behind(written):
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError), Follower().following():
        written("def f():\n    return 1 / 0\n").f()
    assert sys.gettrace() is before


def test_a_tensor_larger_than_a_batch_of_log_probs_is_not_copied():
    assert Copies().of(torch.zeros(MOST + 1)) is None


def test_a_tensor_that_was_written_to_is_copied_again():
    copies, tensor = Copies(), torch.zeros(3)
    before = copies.of(tensor)
    tensor += 1
    after = copies.of(tensor)
    assert before is not None and after is not None
    assert before.key != after.key and before.content.sum() == 0


def test_rows_in_another_order_are_not_the_specified_ones():
    rows = tuple(torch.tensor(row).double() for row in ([1, 2, 3], [4, 5]))
    right = Right([Specified("completions", rows)], 1e-3)
    copies = Copies()
    assert right.name(copies.of([[1, 2, 3], [4, 5]])) == "completions"
    assert not right.name(copies.of([[4, 5], [1, 2, 3]]))


def test_behind_a_statement_come_its_sources_and_then_what_ran_before_it(written):
    theirs = written(
        "def suffix(ids, end):\n"
        "    prefix = ids[:2]\n"
        "    whole = ids + [4]\n"
        "    if end:\n"
        "        pass\n"
        "    return whole[len(prefix):]\n"
    )
    follower = Follower()
    with follower.following():
        theirs.suffix([1, 2, 3], True)
    trail = Trail(follower.events, Right((), 0.0))
    found = [one.statement.source for one in trail.behind(follower.events[-1])]
    assert found == ["return whole[len(prefix):]", "whole = ids + [4]", "prefix = ids[:2]", "pass"]


def test_a_row_that_a_loop_drops_leads_to_who_dropped_it(written):
    theirs = written(
        "def turns(rows):\n"
        "    kept = [0, 1, 2]\n"
        "    while kept:\n"
        "        long = [row > 0 for row in kept]\n"
        "        kept = [row for row, no in zip(kept, long) if not no]\n"
        "        rows[0] += 1\n"
        "        if rows[0] > 2:\n"
        "            kept = []\n"
    )
    follower = Follower()
    with follower.following():
        theirs.turns([0])
    trail = Trail(follower.events, Right((), 0.0))
    found = [one.statement.source for one in trail.dropped(1)]
    assert found[0] == "kept = [row for row, no in zip(kept, long) if not no]"
    assert "long = [row > 0 for row in kept]" in found[:3]
    assert trail.left("turns")[0].statement.source == "while kept:"


def test_what_wrote_to_a_value_or_decided_about_it_comes_last_first(written):
    theirs = written(
        "def messages(turns):\n"
        "    found = [[]]\n"
        "    found[0].append('asked')\n"
        "    if turns:\n"
        "        found[0].append('told')\n"
        "    return found\n"
    )
    follower = Follower()
    with follower.following():
        told = theirs.messages(0)
    trail = Trail(follower.events, Right((), 0.0))
    found = [one.statement.source for one in trail.writing(follower.copies.of(told))]
    assert found == ["if turns:", "found[0].append('asked')", "found = [[]]"]


def test_what_was_made_before_is_found_by_its_name_in_functions_that_still_run(written):
    theirs = written(
        "def main(made, use):\n"
        "    tokenizer = made()\n"
        "    return inner(tokenizer, use)\n"
        "def inner(tokenizer, use):\n"
        "    return use(tokenizer)\n"
    )
    found = theirs.main(object, lambda thing: list(named_by_callers(thing)))
    assert [one.source for one, _ in found] == ["tokenizer = made()"]


def test_a_trainer_that_is_right_is_not_blamed_for_what_it_was_given():
    def subject(departs):
        found = StageFound(stage="prompts", departs=departs, text="seen")
        return SimpleNamespace(departures=lambda: {"prompts": found}, lines_of=lambda _: lines)

    lines = tuple(
        Where(file=file, line=1, source="x", function="f", own=own)
        for file, own in (("trl/trainer.py", False), ("train.py", True))
    )
    alarm = Finding(hypothesis="H16", name="special-tokens", level=Level.FAULT, text="twice")
    for departs, shown in ((True, lines), (None, lines), (False, lines[1:])):
        (found,) = placed([alarm], [PromptsDepart()], subject(departs))
        assert found.where == shown, departs
    assert "own" not in lines[0].to_json()
