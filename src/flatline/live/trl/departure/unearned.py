"""Pay that no answer earned: a reward model read at the wrong label, prompts that hold their own
question with its answer, prompts that stand with several right answers, and an environment that is
paid for what it kept of an earlier episode, or for what is done in others. And pay that no answer
can earn: for a tag that the prompt has already, or for tokens that decoding leaves out.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from flatline.live.leaked import leaked
from flatline.live.measure.played import Played
from flatline.live.stage_found import StageFound, departs
from flatline.live.texts import OPENING_TAG
from flatline.live.trl.departure.asked_again import (
    UNLIKELY,
    Paid,
    calls,
    of_the_batch,
    plain,
)
from flatline.live.trl.departure.data import CHEAP, Heard, _name, alike
from flatline.live.trl.gold import gold_names

ROWS = 64
"""Rows of the data that are read."""
FEWEST = 8
"""Different prompts that are needed."""
MOST = 0.5
"""Share of rows that must share their prompt with another answer."""
FEWEST_PAID = 3
"""Completions that must be paid with a tag in front of them."""
PLAIN = (bool, int, float, str, list, tuple, dict, set)
"""Attributes of an environment that are compared."""
TAIL = 32
"""Tokens at the end of a prompt that are read."""


def judge_labels(trainer: Any) -> StageFound | None:
    """TRL pays the first logit of a reward model: right where it has one label. A function may have
    a `config` of some model, too, and two labels are what every such config has by itself."""
    for at, function in enumerate(trainer.reward_funcs):
        config = getattr(function, "config", None)
        labels = getattr(config, "num_labels", 1)
        if isinstance(function, nn.Module) and labels > 1:
            first = (getattr(config, "id2label", None) or {}).get(0, 0)
            return _unearned(
                f"The reward model `{_name(trainer, at)}` has {labels} labels, and the trainer "
                f"pays the logit of the first, {first!r}, whatever the others say.",
                expected="a reward model with one label",
                fix="Load the reward model with `num_labels=1`, or pass a function that returns "
                "the score you mean, for example the second logit less the first.",
                headline="Your reward is the wrong output of your reward model.",
            )
    return None


def judge_leaked(trainer: Any) -> StageFound | None:
    """Does a prompt hold its own question, and right behind it the answer?"""
    return leaked(_rows(trainer))


def judge_ambiguous(trainer: Any) -> StageFound | None:
    """Does one prompt stand with several right answers? Where an environment, a tool or a player
    says more than the prompt does, it may."""
    plays = ("tools", "environment_factory", "rollout_func")
    if any(getattr(trainer, name, None) for name in plays):
        return None
    rows = _rows(trainer)
    golds: dict[str, set[str]] = {}
    for text, answer in rows:
        golds.setdefault(text, set()).add(answer)
    torn = [text for text, _ in rows if len(golds[text]) > 1]
    if len(golds) < FEWEST or len(torn) < MOST * len(rows):
        return None
    shown = sorted(golds[torn[0]])[:3]
    return _unearned(
        f"{len(torn)} of {len(rows)} rows share their prompt with a row whose gold is another: "
        "what they differ in does not reach the model.",
        f"{torn[0][-80:]!r} stands with the answers {', '.join(map(repr, shown))}",
        expected="one right answer to a prompt",
        fix="Look at how prompts are cut and put together: print some that are the same.",
        headline="The same prompt has several right answers in your data.",
    )


def judge_opened(trainer: Any, heard: Heard, whole: Played) -> StageFound | None:
    """Does a function that pays nobody pay, once the tag that prompts end with is put in front of
    the completions?"""
    tag = _opened(trainer, whole)
    if tag is None:
        return None
    for one in calls(trainer, heard):
        with suppress(Exception):  # a function that cannot be asked again tells nothing
            said = _said(one, whole)
            if any(tag in _text(completion) for completion in said):
                continue
            won = _won_by(one, whole, [_with(tag, completion) for completion in said])
            if won is None:
                continue
            return _unearned(
                f"`{one.name}` pays nothing for any of {len(said)} completions. With `{tag}` in "
                f"front of them, which their prompts end with already, {len(won)} of them are "
                "paid.",
                f"row {won[0].row}: {_text(said[won[0].row])[:60]!r} earns {won[0].before:g}, and "
                f"{won[0].after:g} with `{tag}` in front",
                expected="a reward that reads what the model writes",
                fix=f"Leave `{tag}` out of the pattern, or put it in front of the completion "
                "before it is matched.",
                headline=f"Your reward looks for `{tag}` in completions, but it is in the prompt.",
            )
    return None


def judge_dropped(trainer: Any, heard: Heard, whole: Played) -> StageFound | None:
    """Does a function that pays nobody pay, once completions keep the special tokens that are left
    out of the text it is given?"""
    tokens, texts = _with_special(trainer, whole)
    if not tokens:
        return None
    names = ", ".join(f"`{token}`" for token in tokens)
    for one in calls(trainer, heard):
        with suppress(Exception):  # a function that cannot be asked again tells nothing
            said = _said(one, whole)
            if any(len(_contents(completion)) > 1 for completion in said):
                continue
            won = _won_by(one, whole, [one.as_completion(text) for text in texts])
            if won is None:
                continue
            row = won[0].row
            return _unearned(
                f"`{one.name}` pays nothing for any of {len(said)} completions. With the special "
                f"tokens that the model wrote, which are left out of the text that reward "
                f"functions are given ({names}), {len(won)} of them are paid.",
                f"row {row}: {_text(said[row])[-60:]!r} earns {won[0].before:g}, and "
                f"{texts[row][-60:]!r} {won[0].after:g}",
                expected="a reward that reads what the model writes",
                fix="Make them normal tokens of the tokenizer (`add_tokens`, not as special ones), "
                "or decode `completion_ids` in the function yourself.",
                headline="Your reward looks for special tokens, and completions are decoded "
                "without them.",
            )
    return None


def judge_reset(trainer: Any, heard: Heard, whole: Played) -> StageFound | None:
    """Is an environment that has played the episode of its row, once it is reset, paid as a new one
    is, with nothing done in either? Of one whose pay is drawn by lot nothing is said."""
    result = None if whole.generated is None else whole.generated.result
    if not getattr(trainer, "environment_factories", None) or not isinstance(result, tuple):
        return None
    with suppress(Exception):  # programs of the user's, which may need what is not there
        until = time.perf_counter() + CHEAP
        idle: list[Sequence[Any]] = [[] for _ in whole.rows]
        new, other, used = (
            _environments(trainer, whole.rows, plays, until) for plays in (idle, idle, result[3])
        )
        for one in calls(trainer, heard):
            given = of_the_batch(one.given, whole)
            if given is None or "environments" not in given:
                continue
            paid, again, kept = (
                list(one.function(**{**given, "environments": each})) for each in (new, other, used)
            )
            apart = [row for row in range(len(paid)) if not alike(kept[row : row + 1], [paid[row]])]
            if not alike(paid, again) or len(apart) < FEWEST_PAID:
                continue
            row = apart[0]
            return _unearned(
                f"`reset` does not put everything back{_left_over(used[row], new[row])}. With "
                f"nothing done since, `{one.name}` pays {len(apart)} of {len(paid)} environments "
                "that played an episode and were reset otherwise than new ones.",
                f"row {row}: a new one earns {paid[row]:g}, a used one {kept[row]:g}",
                expected="the same pay",
                fix="Set every attribute of an episode in `reset`: the trainer makes each "
                "environment once and uses it for many episodes.",
                headline="Your environment pays an episode for what an earlier one did.",
            )
    return None


def judge_shared(trainer: Any, heard: Heard, whole: Played) -> StageFound | None:
    """Is an environment in which nothing is done paid the same whether others are played beside it
    or not? Of one whose pay is drawn by lot nothing is said."""
    result = None if whole.generated is None else whole.generated.result
    if not getattr(trainer, "environment_factories", None) or not isinstance(result, tuple):
        return None
    with suppress(Exception):  # programs of the user's, which may need what is not there
        until = time.perf_counter() + CHEAP
        rows, idle = whole.rows, range(len(whole.rows) // 2, len(whole.rows))
        nothing: list[Sequence[Any]] = [[] for _ in rows]
        some = [play if at not in idle else [] for at, play in enumerate(result[3])]
        for one in calls(trainer, heard):
            given = of_the_batch(one.given, whole)
            if given is None or "environments" not in given:
                continue
            alone, again, beside = (
                list(one.function(**{**given, "environments": each}))
                for each in (
                    _side_by_side(trainer, rows, plays, until) for plays in (nothing, nothing, some)
                )
            )
            apart = [row for row in idle if not alike(beside[row : row + 1], [alone[row]])]
            if not alike(alone, again) or len(apart) < FEWEST_PAID:
                continue
            row = apart[0]
            return _unearned(
                f"Environments share what is done in them: `{one.name}` pays {len(apart)} of "
                f"{len(idle)} in which nothing was done otherwise once others were played beside "
                "them.",
                f"row {row}: it earns {alone[row]:g} where nobody plays, and {beside[row]:g} "
                "beside others",
                expected="the same pay",
                fix="Keep the state of an episode on the instance (`self.x = {}` in `reset`), not "
                "on the class, in a module or in a default argument.",
                headline="Your environments share their state, so a rollout is paid for what "
                "others did.",
            )
    return None


def _side_by_side(
    trainer: Any, rows: Sequence[dict[str, Any]], plays: Sequence[Sequence[Any]], until: float
) -> list[Any]:
    """One for each row, all of them reset before any is played, as a trainer does."""
    made = _environments(trainer, rows, [[] for _ in rows], until)
    for environment, messages in zip(made, plays, strict=True):
        if time.perf_counter() > until:
            raise TimeoutError
        _play(environment, messages)
    return made


def _environments(
    trainer: Any, rows: Sequence[dict[str, Any]], plays: Sequence[Sequence[Any]], until: float
) -> list[Any]:
    """One for each row, which has played what is told here, and is reset for the row."""
    found = []
    for row, messages in zip(rows, plays, strict=True):
        if time.perf_counter() > until:
            raise TimeoutError
        several = trainer._multi_environment
        given = {name: v for name, v in row.items() if not several or name != "environment"}
        made = trainer.environment_factories[row["environment"] if several else None]()
        made.reset(**given)
        if messages:
            _play(made, messages)
            made.reset(**given)
        found.append(made)
    return found


def _play(environment: Any, messages: Sequence[Mapping[str, Any]]) -> None:
    """Calls its tools as these messages do."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            asked = call.get("function", call)
            with suppress(Exception):  # a call that the policy got wrong
                getattr(environment, asked["name"])(**asked["arguments"])


def _left_over(used: Any, new: Any) -> str:
    """The attributes in which they differ, in words; empty where none shows."""
    fresh = vars(new)
    names = [n for n, value in vars(used).items() if isinstance(value, PLAIN) and n in fresh]
    other = [f"`{n}` stays {vars(used)[n]!r}"[:60] for n in names if vars(used)[n] != fresh[n]]
    return f" ({', '.join(other[:3])})" if other else ""


class _Won(NamedTuple):
    """A completion that is paid once it is changed."""

    row: int
    before: float
    after: float


def _said(one: Paid, whole: Played) -> list[Any]:
    return list((of_the_batch(one.given, whole) or {})["completions"])


def _won_by(one: Paid, whole: Played, changed: Sequence[Any]) -> list[_Won] | None:
    """What a function that pays nobody pays for other completions of the batch; None where it pays
    somebody, or hardly anybody then."""
    given = of_the_batch(one.given, whole) or {}
    before = [float(paid or 0.0) for paid in one.function(**given)]
    after = [float(p or 0.0) for p in one.function(**{**given, "completions": list(changed)})]
    pairs = enumerate(zip(before, after, strict=True))
    won = [_Won(row, a, b) for row, (a, b) in pairs if b > a]
    pays = max(before) > min(before) or max(before) > 0
    return None if pays or len(won) < FEWEST_PAID else won


def _with_special(trainer: Any, whole: Played) -> tuple[list[str], list[str]]:
    """The special tokens in completions besides those that begin, end and fill them, and the texts
    with these."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    edges = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    ids, seen = whole.inputs["completion_ids"], whole.inputs["completion_mask"].bool()
    rows = [
        [token for token in row[keep].tolist() if token not in edges]
        for row, keep in zip(ids, seen, strict=True)
    ]
    special = set(tokenizer.all_special_ids) & {token for row in rows for token in row}
    names = [str(one) for one in tokenizer.convert_ids_to_tokens(sorted(special))]
    return names, [tokenizer.decode(row) for row in rows]


def _opened(trainer: Any, whole: Played) -> str | None:
    """The opening tag that every prompt of the batch ends with, as the model is given it."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    ids, seen = whole.inputs["prompt_ids"], whole.inputs["prompt_mask"].bool()
    texts = [tokenizer.decode(row[keep][-TAIL:]) for row, keep in zip(ids, seen, strict=True)]
    found = {match[0].strip() if (match := OPENING_TAG.search(text)) else "" for text in texts}
    return found.pop() or None if len(found) == 1 else None


def _with(tag: str, completion: Any) -> Any:
    if isinstance(completion, str):
        return tag + completion
    first, *others = completion
    return [{**first, "content": f"{tag}{first.get('content') or ''}"}, *others]


def _rows(trainer: Any) -> list[tuple[str, str]]:
    """Prompt and gold of the first rows; none where the data names no gold or is a stream."""
    data, gold = trainer.train_dataset, gold_names(trainer)
    names = [one for one in gold if one in (getattr(data, "column_names", None) or ())]
    if not names or not hasattr(data, "__getitem__"):
        return []
    some = [data[at] for at in range(min(ROWS, len(data)))]
    return [(_text(row["prompt"]), plain(row[names[0]])) for row in some]


def _text(prompt: Any) -> str:
    """Messages as lines, each in front of the next."""
    return "\n".join(_contents(prompt))


def _contents(said: Any) -> list[str]:
    if isinstance(said, str):
        return [said]
    return [str(message.get("content") or "") for message in said]


def _unearned(text: str, *examples: str, expected: str, fix: str, headline: str) -> StageFound:
    found = departs("rewards", text, *examples, fix=fix)
    found = replace(found, by_chance=UNLIKELY, direct=True, given=True)
    return replace(found, expected=expected, headline=headline)
