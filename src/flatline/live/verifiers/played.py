"""What the sampler of a verifiers environment really read and wrote, from its own token ids."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flatline.rollout.record import Author, Finish, Rollout, Turn
from flatline.tasks.base import Score


def played(state: Mapping[str, Any], problem_id: str) -> Rollout | None:
    """One episode, token by token; None where the server does not say which ids it read and wrote
    (vLLM does with `return_token_ids`, `flatline serve` always), or wrote its history again."""
    answers = state.get("responses") or ()
    read = [list(getattr(answer, "prompt_token_ids", None) or ()) for answer in answers]
    wrote = [list(getattr(answer.choices[0], "token_ids", None) or ()) for answer in answers]
    if not answers or not all(read) or not all(wrote):
        return None
    first, whole = read[0], [*read[-1], *wrote[-1]]
    if not _grows([[*a, *b] for a, b in zip(read, wrote, strict=True)], read):
        return None
    ids = whole[len(first) :]
    authors, logps = [Author.TEMPLATE] * len(ids), [0.0] * len(ids)
    for answer, prompt, written in zip(answers, read, wrote, strict=True):
        at = len(prompt) - len(first)
        authors[at : at + len(written)] = [Author.MODEL] * len(written)
        logps[at : at + len(written)] = _logps(answer, len(written))
    return Rollout(
        problem_id=problem_id,
        sample=0,
        prompt_ids=first,
        completion_ids=ids,
        authors=authors,
        logprobs=logps,
        turns=[Turn(text=answer.choices[0].message.content or "") for answer in answers],
        finish=_finish(answers[-1]),
        score=Score(reward=float("nan"), parts={}),
        events=Counter(_events(state)),
        weight_version=int(getattr(answers[0], "weight_version", 0)),
    )


def _grows(turns: Sequence[Sequence[int]], read: Sequence[Sequence[int]]) -> bool:
    """Whether each turn was written after all that came before, as it stood."""
    pairs = zip(turns[:-1], read[1:], strict=True)
    return all(list(later[: len(before)]) == list(before) for before, later in pairs)


def _logps(answer: Any, count: int) -> list[float]:
    told = getattr(answer.choices[0], "logprobs", None)
    content = getattr(told, "content", None) or ()
    known = [float(one.logprob) for one in content]
    return known if len(known) == count else [float("nan")] * count


def _finish(answer: Any) -> Finish:
    kinds = {"length": Finish.TURN_LENGTH, "tool_calls": Finish.TURNS}
    return kinds.get(str(answer.choices[0].finish_reason), Finish.ANSWERED)


def _events(state: Mapping[str, Any]) -> Mapping[str, int]:
    """Counts that an episode of the user's keeps, where it keeps them."""
    found = getattr(state.get("episode"), "events", None)
    return found if isinstance(found, Mapping) else {}
