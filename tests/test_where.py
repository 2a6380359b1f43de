"""From a wrong value back to the line that made it, on small pieces of code."""

import importlib.util
import sys
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


def test_right_values_in_and_a_wrong_one_out_is_the_likeliest(written):
    theirs = written(
        "def advantages(rewards):\n"
        "    means = rewards.view(-1, 2).mean(1).repeat_interleave(2)\n"
        "    centred = rewards + means\n"
        "    scaled = centred / 2\n"
        "    return scaled\n"
    )
    found = lines_behind(lambda: theirs.advantages(REWARDS))
    assert found[0] == "centred = rewards + means"
    assert "scaled = centred / 2" in found


def test_a_condition_that_skips_a_step_is_shown(written):
    theirs = written(
        "def advantages(rewards, scale=False):\n"
        "    means = rewards.view(-1, 2).mean(1).repeat_interleave(2)\n"
        "    if scale:\n"
        "        means = means / 2\n"
        "    return means\n"
    )
    assert lines_behind(lambda: theirs.advantages(REWARDS))[0] == "if scale:"


def test_a_helper_that_is_right_elsewhere_is_less_likely_than_what_it_was_told(written):
    theirs = written(
        "def mean_of(values, group):\n"
        "    found = values.view(-1, group).mean(1)\n"
        "    return found.repeat_interleave(group)\n"
        "def advantages(rewards):\n"
        "    logged = mean_of(rewards, 2)\n"
        "    baseline = mean_of(rewards, 4)\n"
        "    return baseline\n"
    )
    assert lines_behind(lambda: theirs.advantages(REWARDS))[0] == "baseline = mean_of(rewards, 4)"


def test_a_lambda_that_only_hands_on_does_not_come_before_what_it_calls(written):
    theirs = written(
        "def mean_of(values, group):\n"
        "    found = values.view(-1, group).mean(1)\n"
        "    return found.repeat_interleave(group)\n"
        "def advantages(rewards):\n"
        "    logged = mean_of(rewards, 2)\n"
        "    ask = lambda group: mean_of(rewards, group)\n"
        "    return ask(4)\n"
    )
    found = lines_behind(lambda: theirs.advantages(REWARDS))
    assert found[0] == "found = values.view(-1, group).mean(1)"
    assert "ask = lambda group: mean_of(rewards, group)" in found


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


def test_a_value_is_followed_through_a_tuple_that_also_holds_what_is_no_data(written):
    theirs = written(
        "def pay(rewards):\n"
        "    rolled = rewards.roll(1)\n"
        "    return rolled, {}, object()\n"
        "def advantages(rewards):\n"
        "    paid, _, _ = pay(rewards)\n"
        "    return paid\n"
    )
    assert lines_behind(lambda: theirs.advantages(REWARDS))[0] == "rolled = rewards.roll(1)"


def test_a_value_is_followed_through_a_with_around_its_return(written):
    theirs = written(
        "import contextlib\n"
        "def made(rewards):\n"
        "    wrong = rewards + 7\n"
        "    return wrong\n"
        "def wrapper(rewards):\n"
        "    with contextlib.nullcontext():\n"
        "        return made(rewards)\n"
        "def outer(rewards):\n"
        "    found = wrapper(rewards)\n"
        "    return found\n"
    )
    assert lines_behind(lambda: theirs.outer(REWARDS))[0] == "wrong = rewards + 7"


def test_the_condition_that_chose_a_statement_over_another_is_shown(written):
    theirs = written(
        "def advantages(rewards, scale):\n"
        "    means = rewards.view(-1, 2).mean(1).repeat_interleave(2)\n"
        "    if scale != 'none':\n"
        "        centred = rewards - 3 * means\n"
        "    else:\n"
        "        centred = rewards - means\n"
        "    half = centred / 2\n"
        "    return half\n"
    )
    found = lines_behind(lambda: theirs.advantages(REWARDS, "group"))
    assert found.index("if scale != 'none':") < found.index("half = centred / 2")


def test_a_turn_of_a_loop_that_is_left_early_is_shown(written):
    theirs = written(
        "def centred(rewards):\n"
        "    found = rewards + 0\n"
        "    for _ in range(2):\n"
        "        if rewards.any():\n"
        "            continue\n"
        "        found = found - rewards.view(-1, 2).mean(1).repeat_interleave(2)\n"
        "    return found\n"
    )
    assert "if rewards.any():" in lines_behind(lambda: theirs.centred(REWARDS))[:5]


def test_a_constant_where_a_right_value_was_scaled_is_shown(written):
    """What it was multiplied with is a specified value, so the product is one too."""
    theirs = written(
        "def advantages(rewards, means):\n"
        "    centred = 1\n"
        "    centred = centred * means\n"
        "    wrong = rewards + 5 * centred\n"
        "    return wrong\n"
    )
    found = lines_behind(lambda: theirs.advantages(REWARDS, MEANS.float()))
    assert found[0] == "wrong = rewards + 5 * centred" and "centred = 1" in found[:4]


def test_a_value_is_followed_through_what_tokenizers_give(written):
    theirs = written(
        "from collections import UserDict\n"
        "def prompts(rewards):\n"
        "    told = UserDict(ids=rewards + 7)\n"
        "    ids = told['ids']\n"
        "    return ids\n"
    )
    assert lines_behind(lambda: theirs.prompts(REWARDS))[0] == "told = UserDict(ids=rewards + 7)"


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


def test_a_second_name_for_a_value_leads_to_who_made_it(written):
    theirs = written(
        "def advantages(rewards, means):\n"
        "    centred = means\n"
        "    left = centred\n"
        "    scaled = left / 2\n"
        "    return scaled\n"
    )
    found = lines_behind(lambda: theirs.advantages(REWARDS, MEANS))
    assert found[:3] == ["scaled = left / 2", "left = centred", "centred = means"]


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
