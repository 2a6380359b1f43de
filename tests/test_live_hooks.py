"""One helper replaces methods of live objects, and puts back exactly what was there."""

import copy
import inspect

import pytest

from flatline.live.hooks import Guard, Patch, listening, swapped


class Player:
    score = 1

    def play(self, turns: int) -> list[int]:
        """Plays."""
        return [self.score] * turns


def twice(original, *args):
    return 2 * original(*args)


def test_a_patch_answers_with_the_original_at_hand_and_leaves_nothing():
    player = Player()
    with Patch(player, "play", twice):
        assert player.play(2) == [1, 1, 1, 1]
        assert Player().play(2) == [1, 1], "other objects of the class are left alone"
    assert vars(player) == {} and player.play(2) == [1, 1]


def test_a_method_that_was_the_instances_own_comes_back_as_the_same_object():
    player, own = Player(), lambda turns: ["own"] * turns
    player.play = own
    with Patch(player, "play", twice):
        assert player.play(1) == ["own", "own"]
    assert vars(player) == {"play": own}


def test_patches_lie_over_each_other_and_come_off_in_any_order():
    player = Player()
    first, second = Patch(player, "play", twice), Patch(player, "play", twice)
    assert len(player.play(1)) == 4
    first.undo()
    assert len(player.play(1)) == 2, "the lower one only passes calls on"
    second.undo()
    assert player.play(1) == [1]


def test_what_somebody_put_over_a_patch_stays_and_reaches_the_original():
    player = Player()
    with Patch(player, "play", twice):
        ours = player.play
        player.play = theirs = lambda turns: ["theirs", *ours(turns)]
    assert player.play is theirs and player.play(1) == ["theirs", 1]


def test_a_patch_comes_off_after_an_error():
    player = Player()
    with pytest.raises(ZeroDivisionError), Patch(player, "play", lambda *_: 1 / 0):
        player.play(1)
    assert vars(player) == {}


def test_what_is_not_there_is_not_made():
    player = Player()
    with Patch(player, "sing", twice):
        assert not hasattr(player, "sing")
    assert vars(player) == {}


def test_a_patched_method_looks_like_its_original():
    player = Player()
    with Patch(player, "play", twice), Patch(player, "play", twice):
        assert list(inspect.signature(player.play).parameters) == ["turns"]
        assert player.play.__doc__ == "Plays."


def test_a_copy_of_a_patched_object_has_its_own_method():
    player = Player()
    with Patch(player, "play", twice):
        other = copy.deepcopy(player)
    other.score = 5
    assert other.play(2) == [5, 5]


def test_a_listener_is_told_of_each_call_and_its_errors_stay_with_it(capsys):
    player, heard = Player(), []
    with listening(player, "play", lambda *told: heard.append(told[:3]), Guard()):
        player.play(2)
        player.play(turns=1)
    assert heard == [((2,), {}, [1, 1]), ((), {"turns": 1}, [1])]
    with listening(player, "play", lambda *_: 1 / 0, Guard()):
        assert player.play(1) == [1]
    assert "recording stopped" in capsys.readouterr().err


def test_swapped_values_are_put_back_whatever_happened_to_them():
    player = Player()
    player.turns = 3
    with swapped(player, turns=4, score=7):
        player.turns = 5
        assert player.play(1) == [7]
    assert vars(player) == {"turns": 3} and player.score == 1
