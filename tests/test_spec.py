"""The specification against examples worked out by hand, never against a library."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from flatline.spec import Asked, NotSpecified
from flatline.spec.advantages import advantages, leave_one_out, rounded_by
from flatline.spec.completions import said, was_cut
from flatline.spec.delivery import apart
from flatline.spec.gradient import clip_factor, compare
from flatline.spec.logprobs import logprobs
from flatline.spec.loss import bonus, of_no_token, shares
from flatline.spec.mask import loss_mask
from flatline.spec.prompts import prompt_ids, without_padding
from flatline.spec.ratio import (
    correction,
    distance,
    highest_entropy,
    kl,
    policy_loss,
    ratio,
    token_loss,
)
from flatline.spec.rewards import penalised, total
from flatline.spec.rows import broken_groups, visited_at_least
from flatline.spec.schedule import rate
from flatline.spec.update import adamw, decay_of

ASKED = Asked(group=2, rows_in_pass=4, longest=10)
ON = torch.ones(2, dtype=torch.bool)


def logs(*chances):
    return torch.log(torch.tensor(chances))


def _one_loss(asked, new_T, old_T, advantage, *, reference_T=None, mask_T=ON, **told):
    return token_loss(
        asked,
        new_T=new_T,
        old_T=old_T,
        reference_T=reference_T,
        mask_T=mask_T,
        advantage=torch.tensor(advantage),
        **told,
    )


def test_a_group_is_one_row_as_often_as_asked():
    assert broken_groups([5, 5, 7, 7], 2) == []
    assert broken_groups([5, 7, 5, 7], 2) == [0, 1]
    assert broken_groups([5, 5, 7], 2) == [1]


def test_an_epoch_visits_every_row_that_fills_a_generation():
    assert visited_at_least(64, 4) == 64
    assert visited_at_least(66, 4) == 64


def test_a_prompt_is_its_template_and_padding_is_no_part_of_it():
    class Tokenizer:
        def __call__(self, text):
            return {"input_ids": [len(text)]}

        def apply_chat_template(self, messages, **options):
            assert options["add_generation_prompt"]
            return {"input_ids": [1, len(messages), options["thinking"]]}

    assert prompt_ids(Tokenizer(), "four", None, {}) == [4]
    assert prompt_ids(Tokenizer(), [{"role": "user"}], None, {"thinking": 9}) == [1, 1, 9]
    assert without_padding(torch.tensor([0, 0, 8, 9]), torch.tensor([0, 0, 1, 1])) == [8, 9]


def test_a_completion_ends_with_its_first_stop_token():
    assert said([4, 2, 2, 2], {2}) == [4, 2]
    assert said([4, 5], {2}) == [4, 5]
    assert was_cut([4, 5], {2}) and not was_cut([4, 2], {2})


def test_what_a_tool_wrote_carries_no_loss_and_a_cut_completion_none_if_asked():
    assert loss_mask(ASKED, 3, None, True).tolist() == [True] * 3
    assert loss_mask(ASKED, 3, [1, 0, 1], False).tolist() == [True, False, True]
    assert not loss_mask(replace(ASKED, mask_cut=True), 3, None, True).any()


def test_the_reward_is_the_weighted_sum_of_what_was_paid():
    paid = torch.tensor([[1.0, 2.0], [math.nan, 2.0], [math.nan, math.nan]])
    found = total(replace(ASKED, reward_weights=(1.0, 0.5)), paid)
    assert found[:2].tolist() == [2.0, 1.0]
    assert math.isnan(found[2])


def test_advantages_are_those_of_the_group():
    paid = torch.tensor([[0.0], [1.0], [4.0], [4.0]])
    half = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert advantages(ASKED, paid).tolist() == pytest.approx([-half, half, 0, 0])
    assert advantages(replace(ASKED, scale="none"), paid).tolist() == [-0.5, 0.5, 0, 0]
    spread = math.sqrt((2.25**2 + 1.25**2 + 2 * 1.75**2) / 3) + 1e-4
    batch = advantages(replace(ASKED, scale="batch"), paid)
    assert batch.tolist() == pytest.approx([-0.5 / spread, 0.5 / spread, 0, 0])


def test_a_row_without_a_reward_counts_nowhere():
    paid = torch.tensor([[0.0], [2.0], [math.nan], [1.0], [1.0], [1.0]])
    found = advantages(replace(ASKED, group=3, scale="none"), paid)
    assert found.tolist() == [-1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_rewards_that_are_normalised_before_they_are_summed():
    paid = torch.tensor([[0.0, 10.0], [1.0, 0.0]])
    asked = replace(ASKED, aggregation="normalize_then_sum", reward_weights=(2.0, 1.0))
    one = 1 / math.sqrt(2)
    first, second = 0.5 / (one + 1e-4), 5 / (10 * one + 1e-4)
    summed = -2 * first + second
    expected = summed / (math.sqrt(2 * summed**2) + 1e-4)
    assert advantages(asked, paid).tolist() == pytest.approx([expected, -expected])


def test_leave_one_out_is_against_the_mean_of_the_others():
    assert leave_one_out(np.array([[0.0, 3.0, 6.0]])).tolist() == [[-4.5, 0.0, 4.5]]


def test_log_probs_are_those_of_the_row_alone_at_the_temperature():
    def logits(ids):
        return torch.tensor([[[0.0, 2.0], [2.0, 0.0], [9.0, 9.0]]])

    found, entropy = logprobs(logits, [0], [1, 1], 2.0, "cpu")
    high, low = math.log(math.e / (1 + math.e)), math.log(1 / (1 + math.e))
    assert found.tolist() == pytest.approx([high, low])
    assert entropy[0] == pytest.approx(-(math.exp(high) * high + math.exp(low) * low))


def test_the_ratio_is_of_each_token_or_of_the_sequence():
    new, old = logs(0.4, 0.1), logs(0.2, 0.2)
    assert ratio(ASKED, new, old, ON).tolist() == pytest.approx([2.0, 0.5])
    assert ratio(replace(ASKED, level="sequence"), new, old, ON).tolist() == pytest.approx([1, 1])


def test_gspo_token_has_the_sequences_ratio_and_each_tokens_own_gradient():
    """Ratios of 2 and 8: the sequence's is 4, beyond the clip at 1.2. With an advantage of 1 a
    token's loss then no longer moves; with one of -1 it moves by 4 per nat of that token alone."""
    new = logs(0.4, 0.8).requires_grad_()
    old = logs(0.2, 0.1)
    asked = replace(ASKED, level="sequence_token")
    found = ratio(asked, new, old, ON)
    assert found.tolist() == pytest.approx([4.0, 4.0])
    by_token = torch.autograd.functional.jacobian(lambda x: ratio(asked, x, old, ON), new)
    assert by_token.tolist() == [pytest.approx([4.0, 0.0]), pytest.approx([0.0, 4.0])]
    whole = replace(asked, level="sequence")
    by_sequence = torch.autograd.functional.jacobian(lambda x: ratio(whole, x, old, ON), new)
    assert by_sequence.tolist() == [pytest.approx([2.0, 2.0])] * 2
    lost = policy_loss(asked, new, found, torch.tensor([1.0, -1.0]))
    assert lost.tolist() == pytest.approx([-1.2, 4.0])
    lost.sum().backward()
    assert new.grad.tolist() == pytest.approx([0.0, 4.0])


def test_the_kl_is_schulmans_third_estimator():
    new, reference = logs(0.5), logs(0.25)
    plain = 0.5 - math.log(0.5) - 1
    assert float(kl(ASKED, new, reference, torch.tensor([2.0]))) == pytest.approx(plain)
    corrected = kl(replace(ASKED, corrected_kl=True), new, reference, torch.tensor([2.0]))
    assert float(corrected) == pytest.approx(2 * plain)


@pytest.mark.parametrize(
    ("advantage", "chance", "expected"),
    [(1.0, 0.4, -1.3), (1.0, 0.1, -0.5), (-1.0, 0.1, 0.9), (-1.0, 0.4, 2.0)],
)
def test_the_clip_stops_what_went_far_enough_and_nothing_else(advantage, chance, expected):
    asked = replace(ASKED, clip_low=0.1, clip_high=0.3)
    found = _one_loss(asked, logs(chance), logs(0.2), advantage, mask_T=ON[:1])
    assert float(found) == pytest.approx(expected)


def test_the_two_sided_clip_holds_a_ratio_that_is_punished():
    found = _one_loss(replace(ASKED, ceiling=1.5), logs(0.4), logs(0.2), -1.0, mask_T=ON[:1])
    assert float(found) == pytest.approx(1.5)


def test_cispo_has_the_gradient_of_the_log_prob_times_a_held_ratio():
    new = logs(0.4).requires_grad_()
    found = _one_loss(
        replace(ASKED, loss="cispo", clip_high=1.5), new, logs(0.2), 2.0, mask_T=ON[:1]
    )
    found.sum().backward()
    assert float(new.grad) == pytest.approx(-3.0)


def test_an_entropy_share_leaves_the_least_certain_tokens():
    entropies = [torch.tensor([0.1, 0.9]), torch.tensor([0.2, 0.8])]
    kept = highest_entropy(replace(ASKED, entropy_share=0.5), entropies, [ON, ON])
    assert [one.tolist() for one in kept] == [[False, True], [False, True]]


def test_what_is_left_out_of_the_policy_loss_keeps_its_kl():
    loss = _one_loss(
        replace(ASKED, beta=0.5),
        logs(0.5),
        logs(0.5),
        1.0,
        reference_T=logs(0.25),
        mask_T=ON[:1],
        chosen_T=torch.tensor([False]),
    )
    assert float(loss) == pytest.approx(0.5 * (0.5 - math.log(0.5) - 1))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("grpo", [1 / 8, 1 / 24]),
        ("dr_grpo", [1 / 40, 1 / 40]),
        ("bnpo", [1 / 16, 1 / 16]),
        ("dapo", [1 / 20, 1 / 20]),
        ("cispo", [1 / 20, 1 / 20]),
        ("luspo", [1 / 4, 1 / 4]),
    ],
)
def test_each_loss_has_its_own_denominator(loss, expected):
    """Two passes of two rows; this one has 2 and 6 tokens, the generation of four passes 40."""
    asked = replace(ASKED, loss=loss, passes=2, passes_in_generation=4)
    assert shares(asked, [2, 6], 40) == pytest.approx(expected)


def test_gradients_are_compared_by_direction_and_length():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([6.0, 8.0])
    same = compare([("w", a, b)])
    assert (same.cosine, same.length) == pytest.approx((1.0, 0.5))
    assert compare([("w", -a, a)]).cosine == pytest.approx(-1)
    missing = compare([("w", a, a), ("v", None, b)])
    assert missing.worst == "v" and missing.cosine < 0.5
    assert compare([("w", None, None)]).both_zero


def test_clipping_shortens_what_is_too_long():
    assert clip_factor(2.0, 1.0) == pytest.approx(0.5, rel=1e-5)
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(50.0, 0.0) == 1.0


def test_the_first_step_of_adamw_goes_by_the_rate_against_the_gradient():
    weight, gradient = torch.tensor([1.0, 1.0]), torch.tensor([0.3, -5.0])
    found = adamw(ASKED, weight, gradient, rate=0.1, decay=0.0)
    assert found.tolist() == pytest.approx([0.9, 1.1], rel=1e-6)
    decayed = adamw(ASKED, weight, gradient, rate=0.1, decay=0.5)
    assert decayed.tolist() == pytest.approx([0.85, 1.05], rel=1e-6)


def test_a_later_step_of_adamw_goes_on_from_its_means():
    given = {"mean": torch.tensor([0.1]), "square": torch.tensor([0.01])}
    found = adamw(
        ASKED, torch.tensor([1.0]), torch.tensor([1.0]), rate=0.1, decay=0, step=2, **given
    )
    mean = (0.9 * 0.1 + 0.1) / (1 - 0.9**2)
    square = (0.999 * 0.01 + 0.001) / (1 - 0.999**2)
    assert float(found) == pytest.approx(1 - 0.1 * mean / math.sqrt(square))


def test_norms_and_biases_are_not_decayed():
    asked = replace(ASKED, decay=0.1)
    assert decay_of(asked, "layers.0.q_proj.weight") == 0.1
    assert decay_of(asked, "layers.0.q_proj.bias") == 0.0
    assert decay_of(asked, "layers.0.input_layernorm.weight") == 0.0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("constant_with_warmup", [0, 0.5, 1, 1]),
        ("linear", [0, 0.5, 1, 0.5]),
        ("cosine", [0, 0.5, 1, 0.5]),
    ],
)
def test_the_rate_in_force_follows_the_schedule(schedule, expected):
    asked = replace(ASKED, learning_rate=1.0, schedule=schedule, warmup=2, steps=10)
    assert [rate(asked, step) for step in (0, 1, 2, 6)] == pytest.approx(expected)


def test_log_probs_are_apart_by_mean_and_worst():
    found = apart(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -5.0]))
    assert (found.mean, found.worst, found.at) == (1.5, 3.0, 1)
    assert apart(torch.tensor([]), torch.tensor([])).at == -1


@pytest.mark.parametrize(
    "ask",
    [
        lambda: advantages(replace(ASKED, scale="rank"), torch.ones(2, 1)),
        lambda: advantages(replace(ASKED, aggregation="product"), torch.ones(2, 1)),
        lambda: shares(replace(ASKED, loss="reinforce++"), [1], 1),
        lambda: rate(replace(ASKED, schedule="polynomial"), 1),
        lambda: ratio(replace(ASKED, level="turn"), ON * 0.0, ON * 0.0, ON),
        lambda: adamw(replace(ASKED, optimizer="lion"), ON * 1.0, ON * 1.0, rate=1, decay=0),
        lambda: replace(ASKED, besides=("an adaptive entropy bonus",)).refuse_besides(),
    ],
)
def test_what_is_not_specified_is_said(ask):
    with pytest.raises(NotSpecified, match=r"."):
        ask()


# -- RLOO and GMPO

RLOO = replace(
    ASKED, loss="rloo", level="product", baseline="others", scale="none", kl_place="reward"
)


def test_rloo_compares_each_reward_with_the_others_of_its_group():
    paid_BF = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    of_four = replace(RLOO, group=4)
    assert advantages(of_four, paid_BF).tolist() == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    unpaid_BF = torch.tensor([[1.0], [0.0], [math.nan], [math.nan]])
    assert advantages(of_four, unpaid_BF).tolist() == [1.0, -1.0, 0.0, 0.0], (
        "of those that have one"
    )


def test_advantages_may_be_divided_by_their_own_spread():
    paid_BF = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    found = advantages(replace(RLOO, scale="advantages"), paid_BF)
    assert found.tolist() == pytest.approx([1 / 0.8165, -1 / 0.8165, 0.0, 0.0], rel=1e-3)


def test_a_kl_in_the_reward_is_taken_off_after_the_reward_was_cut_to_its_range():
    asked = replace(RLOO, beta=0.5, reward_range=(0.0, 1.0))
    reward_B, kl_B = np.array([3.0, 0.5]), np.array([0.2, -0.4])
    assert penalised(asked, reward_B, kl_B).tolist() == pytest.approx([0.9, 0.7])
    with pytest.raises(NotSpecified, match="KL in the reward"):
        penalised(asked, reward_B, None)
    old_T, reference_T = torch.tensor([-1.0, -2.0, -9.0]), torch.tensor([-1.5, -1.0, 0.0])
    assert float(distance(old_T, reference_T, torch.tensor([1, 1, 0]))) == pytest.approx(-0.5)


def test_a_completion_of_rloo_is_one_act():
    new_T = torch.tensor([0.1, 0.2], requires_grad=True)
    found_T = ratio(RLOO, new_T, torch.zeros(2), ON)
    assert found_T.tolist() == pytest.approx([math.exp(0.3)] * 2)
    within = replace(RLOO, clip_high=1.0, beta=0.5)
    loss_T = _one_loss(within, new_T, torch.zeros(2), 2.0, reference_T=torch.full((2,), 5.0))
    share = shares(replace(within, passes=1), [2], 2)[0]
    (share * loss_T.sum()).backward()
    assert float((share * loss_T.sum()).detach()) == pytest.approx(-2 * math.exp(0.3)), (
        "no KL in the loss"
    )
    assert new_T.grad.tolist() == pytest.approx([-2 * math.exp(0.3)] * 2)
    assert of_no_token(RLOO, 2.0) == -2.0 and of_no_token(ASKED, 2.0) == 0.0


@pytest.mark.parametrize(("advantage", "kept"), [(1.0, [0.4, -0.8]), (-1.0, [0.9, -0.4])])
def test_gmpo_takes_the_geometric_mean_of_ratios_clipped_to_one_side(advantage, kept):
    asked = replace(ASKED, loss="gmpo", clip_low=0.4, clip_high=0.4)
    loss_T = _one_loss(asked, torch.tensor([0.9, -0.8]), torch.zeros(2), advantage)
    assert loss_T.tolist() == pytest.approx([-advantage * math.exp(sum(kept) / 2)] * 2)


def test_a_group_of_like_rewards_may_be_off_by_the_rounding_of_its_mean():
    reward_B = np.array([1.2, 1.2, 0.0, 1.0])
    most_B = rounded_by(ASKED, reward_B)
    assert most_B.tolist() == rounded_by(ASKED, reward_B[:, None]).tolist()
    in_float32 = np.float32(1.2000001) - np.float32(1.2)
    assert in_float32 / 1e-4 < most_B[0] < 1e-2
    assert most_B[3] < 1e-5


def test_sapo_has_the_slope_of_the_ratio_at_1_and_flattens_away_from_it():
    asked = replace(ASKED, loss="sapo", softness=(1.0, 2.0))
    for advantage, tau in ((1.0, 1.0), (-0.5, 2.0)):
        new_T = torch.tensor([0.0, math.log(3)], requires_grad=True)
        loss_T = _one_loss(asked, new_T, torch.zeros(2), advantage)
        assert loss_T[1].item() == pytest.approx(
            -4 / tau / (1 + math.exp(-2 * tau)) * advantage, rel=1e-5
        )
        loss_T.sum().backward()
        assert float(new_T.grad[0]) == pytest.approx(-advantage)
    assert shares(asked, [2, 3], 5) == shares(replace(asked, loss="grpo"), [2, 3], 5)


def test_vespo_weighs_a_completion_by_a_gamma_density_of_the_product_of_its_ratios():
    asked = replace(ASKED, loss="vespo", level="product", gamma=((2.0, 3.0), (3.0, 2.0)))
    for advantage, k, fall in ((1.0, 2.0, 3.0), (-0.5, 3.0, 2.0)):
        new_T = torch.tensor([-1.0, -2.0], requires_grad=True)
        _one_loss(asked, new_T, torch.tensor([-1.1, -2.3]), advantage).sum().backward()
        w = math.exp(0.4)
        expected = -(w**k) * math.exp(fall * (1 - w)) * advantage
        assert new_T.grad.tolist() == pytest.approx([expected] * 2, rel=1e-5)


def test_what_was_punished_and_lies_too_far_off_carries_no_policy_loss():
    asked = replace(ASKED, drift=0.2)
    far, near = torch.tensor([-0.5, -1.5]), torch.tensor([-0.9, -1.9])
    new_T = torch.tensor([-1.0, -2.0])
    assert _one_loss(asked, new_T, far, -1.0).abs().sum() == 0
    assert _one_loss(asked, new_T, far, 1.0).abs().sum() > 0
    assert _one_loss(asked, new_T, near, -1.0).abs().sum() > 0


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_truncate", [2.0, math.exp(-0.5)]),
        ("token_mask", [0.0, math.exp(-0.5)]),
        ("sequence_truncate", [math.exp(0.5)] * 2),
        ("sequence_mask", [math.exp(0.5)] * 2),
    ],
)
def test_tokens_are_weighted_for_the_engine_that_sampled_them(mode, expected):
    asked = replace(ASKED, correction=(mode, None, 2.0))
    old_T, sampled_T = torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -1.5])
    assert correction(asked, old_T, sampled_T, ON[:2]).tolist() == pytest.approx(expected)
    unheard_T = torch.full((2,), torch.nan)
    assert correction(asked, old_T, unheard_T, ON[:2]).tolist() == [1.0, 1.0]
    weighted_T = _one_loss(asked, old_T, old_T, 1.0, corrected_T=torch.tensor(expected))
    assert weighted_T.tolist() == pytest.approx([-one for one in expected])


def test_an_entropy_bonus_is_the_mean_over_the_tokens_of_a_pass_and_over_passes():
    asked = replace(ASKED, entropy_bonus=0.1, passes=2)
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert float(sum(bonus(asked, one, 3) for one in rows)) == pytest.approx(0.1 * 2.0 / 2)
