"""One number from all tokens of a step, N rows in passes of B, token losses l_it.

    grpo      1/N sum_i 1/|o_i| sum_t l_it           Shao et al., 2024, equation 3
    rloo      1/N sum_i l_i                          Ahmadian et al., 2024: a completion is one act
    sapo      as grpo                                Gao et al., 2025
    gmpo      as rloo                                Zhao et al., 2025
    dr_grpo   1/(N L) sum_i sum_t l_it               Liu et al., 2025; L the longest length allowed
    bnpo      mean over the tokens of each pass, mean over passes
    dapo      1/(sum_i |o_i|) sum_i sum_t l_it       Yu et al., 2025, equation 8: tokens of the step
    cispo     as dapo; vespo too
    luspo     1/N sum_i sum_t l_it

An entropy bonus c (Skywork-OR1, 2025) takes c times the mean entropy of the tokens of a pass off
it, mean over passes.

|o_i| counts tokens that carry a loss, 1 where there are none. Where one generation is dealt out to
several steps, a step of dapo or cispo is divided by its share of the generation's tokens, so that
each token counts the same in all of them. The l_it of rloo and gmpo are all l_i. Two processes or
twice the passes change nothing.
"""

from collections.abc import Sequence

from torch import Tensor

from flatline.spec.asked import Asked, NotSpecified


def shares(asked: Asked, trained: Sequence[int], tokens_in_generation: int) -> list[float]:
    """What each row's sum of token losses is multiplied with, for the rows of one pass.
    `trained` counts their tokens that carry a loss."""
    rows = asked.passes * len(trained)
    if asked.loss in ("grpo", "sapo", "rloo", "gmpo"):
        return [1 / (rows * max(length, 1)) for length in trained]
    if asked.loss == "dr_grpo":
        return [1 / (rows * asked.longest)] * len(trained)
    if asked.loss == "bnpo":
        return [1 / (asked.passes * max(sum(trained), 1))] * len(trained)
    if asked.loss in ("dapo", "cispo", "vespo"):
        of_step = tokens_in_generation * asked.passes / asked.passes_in_generation
        return [1 / max(of_step, 1)] * len(trained)
    if asked.loss == "luspo":
        return [1 / rows] * len(trained)
    raise NotSpecified(f"the loss {asked.loss!r}")


def bonus(asked: Asked, entropy_T: Tensor, tokens_in_pass: int) -> Tensor:
    """What the entropy of a row's tokens takes off the loss, of all that count in its pass."""
    return asked.entropy_bonus * entropy_T.sum() / (max(tokens_in_pass, 1) * asked.passes)


def of_no_token(asked: Asked, advantage: float) -> float:
    """Loss of a row without a token that carries one: nothing, but where a completion is one act,
    whose ratio is then 1. No weight moves it."""
    return -advantage if asked.loss in ("rloo", "gmpo") else 0.0
