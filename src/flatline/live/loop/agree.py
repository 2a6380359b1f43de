"""Whether the functions of a `Loop` do what the loop does: both are watched, and compared.

Where both sample the same rows from the same random numbers, they are compared token by token; else
by which shares of the tokens are trained and hidden.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flatline.errors import ConfigError
from flatline.rollout.record import Author

Row = Mapping[str, Any]
"""Of the table `tokens`."""
SAME_LOGP = 1e-2
"""Nats between two log-probs of one token under one policy: batches of other shapes round."""
SAME_WAY = 0.9
"""Cosine of the weights of tokens in both losses; a loss may be scaled otherwise."""
APART = 0.1
"""Share of the tokens by which rules about them may differ on other rows."""


def refuse_if_other(loop: Sequence[Row], adapter: Sequence[Row]) -> None:
    """An error that says in what the adapter is not the loop."""
    if not loop:
        return  # no logits were heard: the notes of the watch say why
    pairs = list(_pairs(loop, adapter))
    seen = _first_difference(pairs) if pairs else _other_rule(loop, adapter)
    if seen:
        raise ConfigError(
            f"The functions of this Loop are not the loop: {seen}.\n"
            "One step of each was watched, from the same weights and random numbers. A checkup of "
            "these functions would say nothing of the loop.\n"
            "Let `sample`, `logprobs` and `loss` call the very code that `step` runs."
        )


def refuse_other_logps(
    adapter: Iterable[Row], completions: Sequence[tuple[int, ...]], logps: Sequence[np.ndarray]
) -> None:
    """An error where `logprobs` gives something else than the log-probs that its logits have;
    `logps` are what it gives for each completion, NaN where a token has no loss."""
    given: dict[tuple[int, ...], list[np.ndarray]] = {}
    for completion, own in zip(completions, logps, strict=True):
        given.setdefault(completion, []).append(own)
    for row in adapter:
        # Two prompts may be answered in the same words: one of these rows it must be.
        alike = given.get(tuple(int(one) for one in row["ids"]))
        if alike is None or row["trainer"] is None:
            continue
        heard = row["trainer"]
        own = min(alike, key=lambda one: np.nansum(np.abs(heard - one)))
        off = np.nan_to_num(np.abs(heard - own)) > SAME_LOGP
        if off.any():
            at = int(off.argmax())
            raise ConfigError(
                f"`logprobs` gives {own[at]:.3f} for a token whose log-prob is {heard[at]:.3f} in "
                "the logits of the same pass.\n"
                "The loss and every comparison would not be of log-probs.\n"
                "Return the log-softmax of the logits at `ids[:, 1:]`: entry t of a row is that of "
                "its token t + 1."
            )


def _pairs(loop: Iterable[Row], adapter: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Rows of both that are one and the same."""
    free = list(adapter)
    for row in loop:
        found = next((one for one in free if _is_same(_ids(row), _ids(one))), None)
        if found is not None:
            free.remove(found)
            yield row, found


def _ids(row: Row) -> np.ndarray:
    return np.concatenate([row["prompt_ids"], row["ids"]])


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Where one ends earlier, the other trains what is behind its end."""
    size = min(len(a), len(b))
    return np.array_equal(a[:size], b[:size]) and size > 0


def _whole(row: Row, name: str, before: str | None = None) -> np.ndarray | None:
    """A column over prompt and completion; None where nothing is known."""
    if row[name] is None or (before is not None and row[before] is None):
        return None
    first = np.zeros(len(row["prompt_ids"])) if before is None else np.asarray(row[before])
    return np.concatenate([first, np.asarray(row[name], dtype=float)])


def _first_difference(pairs: Sequence[tuple[Row, Row]]) -> str:
    weights: list[tuple[np.ndarray, np.ndarray]] = []
    for row, other in pairs:
        columns = (("attended", "prompt_attended"), ("trained", None), ("trainer", None))
        for name, before in columns:
            seen = _differ(_whole(row, name, before), _whole(other, name, before), name)
            if seen:
                return seen
        known = _whole(row, "weight"), _whole(other, "weight")
        if known[0] is not None and known[1] is not None:
            weights.append(_common(known[0], known[1]))
    return _other_way(weights)


def _common(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = max(len(a), len(b))
    return np.pad(a, (0, size - len(a))), np.pad(b, (0, size - len(b)))


def _differ(a: np.ndarray | None, b: np.ndarray | None, name: str) -> str:
    if a is None or b is None:
        return ""
    a, b = _common(a, b) if name == "trained" else (a[: len(b)], b[: len(a)])
    off = np.abs(a - b) > (SAME_LOGP if name == "trainer" else 0)
    if not off.any():
        return ""
    at = int(off.argmax())
    if name == "trainer":
        return f"a token with the log-prob {a[at]:.3f} in the loop has {b[at]:.3f} in `logprobs`"
    word = "has a loss" if name == "trained" else "is attended to"
    where = ("in `step` and not in `loss`", "in `loss` and not in `step`")[int(b[at])]
    return f"of one row, token {at + 1} of {len(a)} {word} {where}"


def _other_way(weights: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    if not weights:
        return ""
    a, b = (np.nan_to_num(np.concatenate(side)) for side in zip(*weights, strict=True))
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / size if size else 1.0
    if cosine > SAME_WAY:
        return ""
    return f"`loss` weighs tokens differently from `step` (cosine {cosine:.2f} of their weights)"


def _other_rule(loop: Sequence[Row], adapter: Sequence[Row]) -> str:
    words = ("of the sampled tokens have a loss", "of the other tokens have a loss")
    hidden = "of the prompts' tokens are hidden"
    for at, word in enumerate((*words, hidden)):
        share, other = (_shares(rows)[at] for rows in (loop, adapter))
        if abs(share - other) > APART:
            return f"{share:.0%} {word} in `step`, {other:.0%} in the functions"
    return ""


def _shares(rows: Sequence[Row]) -> tuple[float, float, float]:
    known = [row for row in rows if row["trained"] is not None]
    trained = np.concatenate([np.asarray(row["trained"]) for row in known] or [np.zeros(0)])
    author = np.concatenate([np.array(row["author"], dtype=float) for row in known] or [trained])
    model = author == Author.MODEL
    seen = [row["prompt_attended"] for row in rows if row["prompt_attended"] is not None]
    hidden = 1 - np.concatenate(seen or [np.ones(1)])
    return _mean(trained[model]), _mean(trained[~model]), _mean(hidden)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else 0.0
