"""Made-up plays, for everything that only needs finished rollouts."""

from collections import Counter
from collections.abc import Sequence

from flatline.rollout.record import Author, Finish, Rollout, Turn
from flatline.tasks.base import Problem, Score


def problem_of(id: str, *, hops: int = 2, question: str = "q", answer: str = "42") -> Problem:
    return Problem(id=id, question=question, answer=answer, hops=hops)


def rollout_of(
    problem_id: str,
    sample: int = 0,
    *,
    reward: float = 1.0,
    right: bool | None = None,
    parts: dict[str, float] | None = None,
    turns: Sequence[Turn] = (),
    finish: Finish = Finish.ANSWERED,
    events: dict[str, int] | None = None,
) -> Rollout:
    """A play whose exact match follows the reward unless it is given."""
    right = reward == 1.0 if right is None else right
    return Rollout(
        problem_id=problem_id,
        sample=sample,
        prompt_ids=[1, 2],
        completion_ids=[3, 4, 5],
        authors=[Author.MODEL, Author.MODEL, Author.TEMPLATE],
        logprobs=[-0.5, -0.25, 0.0],
        turns=list(turns) or [Turn(text="the answer")],
        finish=finish,
        score=Score(reward=reward, parts={"exact_match": float(right), **(parts or {})}),
        events=Counter(events or {}),
        weight_version=0,
    )
