"""Recorded steps beside the specified ones: what needs no model to be held against the definition.

A checkup looks at one step. What goes wrong later, a rate that ends, weights that are put back, a
reward that remembers, is seen along the run. Every number is computed again from what was asked for
and from what came before it; limits are those of arithmetic, as in a checkup. Only what `attach`
recorded is looked at: it alone says what was asked for. Of a watched loop, the weights of rows in
its loss tell some mistakes all the same (`flatline.hypotheses.row_weights`).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.by_place import never_paid_behind
from flatline.hypotheses.gold_fit import foreign_gold
from flatline.hypotheses.row_signs import of_watched_ratio, of_watched_signs
from flatline.hypotheses.row_weights import of_watched_rows
from flatline.hypotheses.watched_scores import of_watched_labels
from flatline.hypotheses.weights import looked_at, trains_later, updates_once
from flatline.live.leaked import leaked
from flatline.live.stage_found import StageFound, departs, same, unknown
from flatline.rollout.record import Author
from flatline.spec import STAGES, Asked, NotSpecified
from flatline.spec.advantages import advantages, beyond_rounding, of_totals
from flatline.spec.numerics import ADVANTAGE, PAID, TOLERANCE
from flatline.spec.scaling import ALIKE, WITHOUT_RATE, Scaling, common_factor, every_step
from flatline.spec.schedule import FACTOR_NOT_RATE, GIVEN, never_begins, other_rate
from flatline.trace import Trace
from flatline.trace.memo import once

PRECISIONS = {"float32": "fp32", "tf32": "tf32", "float16": "fp16", "bfloat16": "bf16"}
MOST_PROMPTS = 64
"""Prompts that are read."""
MOST_STEPS = 50
"""Steps whose tokens are read, evenly over the run: all of a long one would take minutes."""
SHOWN = 8
"""Numbers of an example that are shown."""
FEWEST_PROMPTS = 3
"""Prompts whose pay must have changed for the same words."""
FEWEST_STEPS = 3
"""Steps after which weights must be further from their start than one step takes them."""
TOUCHED = 1e-6
"""Change outside of any step, in units of a step, that no rounding makes. Healthy: exactly 0."""

Look = Callable[[Trace], StageFound]


def asked_in(trace: Trace) -> Asked:
    """What the run was asked to be; `NotRecorded` where it does not say all of it."""
    given = trace.settings
    if trace.run.get("source") != "attach" or "reward_weights" not in given:
        raise NotRecorded("settings.reward_weights")
    if trace.resumed:
        raise NotSpecified("a run that was started several times: only its last start is known")
    weights = given["reward_weights"]
    return Asked(
        group=int(_known(given, "num_generations")),
        rows_in_pass=int(_known(given, "per_device_batch_size")) * _count(given, "world_size"),
        passes=_count(given, "gradient_accumulation_steps"),
        passes_in_generation=_count(given, "steps_per_generation"),
        longest=int(given.get("max_completion_length") or 0),
        reward_weights=None if weights is None else tuple(weights.values()),
        aggregation=given.get("multi_objective_aggregation") or "sum_then_normalize",
        scale={"True": "group", "False": "none"}.get(
            str(given.get("scale_rewards")), str(given.get("scale_rewards"))
        ),
        mask_cut=bool(given.get("mask_truncated_completions")),
        learning_rate=float(_known(given, "learning_rate")),
        schedule=str(given.get("lr_scheduler_type")),
        warmup=int(given.get("warmup_steps") or 0),
        steps=int(given.get("max_steps") or 0),
    )


def first_departing(trace: Trace) -> str | None:
    """The first stage, in the order of a step, that departs along the run."""
    for stage in STAGES:
        with suppress(NotRecorded):
            if stage in LOOKS and LOOKS[stage](trace).departs:
                return stage
    return None


def _told(stage: str) -> Callable[[Callable[[Trace, Asked], StageFound]], Look]:
    """A look that is taken once, and cannot tell where what was asked for is not specified."""

    def wrap(look: Callable[[Trace, Asked], StageFound]) -> Look:
        @once
        def taken(trace: Trace) -> StageFound:
            try:
                return look(trace, asked_in(trace))
            except NotSpecified as missing:
                return unknown(stage, f"Not specified: {missing}.")

        return taken

    return wrap


# -- mask


@_told("mask")
def mask(trace: Trace, asked: Asked) -> StageFound:
    """Does every token that the model wrote carry a loss, in every rollout of the run?"""
    table = trace.rollouts
    own = trace.settings.get("engine") == "transformers"
    # Without tools the model wrote all of it, whatever a mask of tokens says.
    wrote = table["completion_tokens" if own and _alone(trace) else "model_tokens"]
    trained, finish = table["trained_tokens"], table["finish"]
    ended = finish == "eos"
    none = own & asked.mask_cut & (finish == "length")
    due = np.where(none, 0.0, wrote)
    looked = (
        np.isfinite(wrote) & np.isfinite(trained) & (ended | none | ~np.asarray(asked.mask_cut))
    )
    wrong = np.flatnonzero(looked & (trained != due))
    if not looked.any():
        return unknown("mask", "How many tokens carry a loss was not recorded.")
    if not len(wrong):
        return same("mask", f"All {looked.sum()} rollouts train exactly what the model wrote.")
    at = wrong[0]
    return departs(
        "mask",
        f"{len(wrong)} of {looked.sum()} rollouts train another number of tokens than the model "
        f"wrote, from step {int(table['step'][wrong].min())} on.",
        f"{_place(trace, at)}: {int(due[at])} tokens should carry a loss, {int(trained[at])} do",
        measured=len(wrong) / float(looked.sum()),
    )


def _alone(trace: Trace) -> bool:
    """Whether nobody but the model can write in a completion."""
    return trace.settings.get("tools") == 0


# -- rewards


@_told("rewards")
def rewards(trace: Trace, asked: Asked) -> StageFound:
    """Is each reward the weighted sum of its parts, and paid alike whenever it is earned?"""
    return (
        _unpaid(trace)
        or _weighted(trace, asked)
        or _remembering(trace)
        or _late(trace)
        or _leaked(trace)
        or foreign_gold(trace)
        or same("rewards", "Every reward is the weighted sum of its parts, at every step.")
    )


def _leaked(trace: Trace) -> StageFound | None:
    """Do prompts hold their own question with its answer?"""
    table = trace.rollouts
    if any(name not in table for name in ("prompt", "gold")):
        return None
    pairs = zip(table["prompt"], table["gold"], strict=True)
    known = {str(prompt): str(gold).strip() for prompt, gold in pairs if prompt and gold}
    return leaked(list(known.items())[:MOST_PROMPTS])


def _unpaid(trace: Trace) -> StageFound | None:
    """A row that no function pays has no reward: it is compared with nobody, and its advantage is
    0. Of a step at which nothing was heard of any function nothing is known."""
    paid_BF, table = _paid(trace), trace.rollouts
    if paid_BF is None or "advantage" not in table:
        return None
    none_B, step_B = ~np.isfinite(paid_BF).any(axis=1), table["step"]
    none_B &= np.isin(step_B, step_B[~none_B])
    wrong = np.flatnonzero(none_B & (np.nan_to_num(table["advantage"]) != 0))
    if not len(wrong):
        return None
    at = wrong[0]
    found = departs(
        "rewards",
        f"No reward function pays {none_B.sum()} of {len(none_B)} rollouts, and {len(wrong)} of "
        f"them are trained all the same, from step {int(step_B[wrong].min())} on: the trainer "
        "makes up a reward for what nobody judged.",
        f"{_place(trace, at)}: every function returns None, and the advantage is "
        f"{table['advantage'][at]:.3f} instead of 0",
        measured=len(wrong) / float(none_B.sum()),
    )
    return replace(found, direct=True)


def _weighted(trace: Trace, asked: Asked) -> StageFound | None:
    """Weights that somebody changes along the run on purpose are left alone."""
    paid_BF = _paid(trace)
    if paid_BF is None or asked.reward_weights is None:
        return unknown("rewards", "Several reward functions have one name.")
    reward_B = trace.rollouts["reward"]
    expected_B = np.nansum(paid_BF * np.array(asked.reward_weights), axis=1)
    known_B = np.isfinite(reward_B) & np.isfinite(paid_BF).any(axis=1)
    if not known_B.any():
        return unknown("rewards", "No rollout has both its reward and the parts of it.")
    off_B = np.abs(reward_B - expected_B) > PAID * (1 + np.abs(expected_B))
    wrong = np.flatnonzero(known_B & off_B)
    first = trace.rollouts["step"] == trace.rollouts["step"].min()
    if not len(wrong) or not (first & known_B & off_B).any():
        return None
    at = wrong[0]
    return departs(
        "rewards",
        f"{len(wrong)} of {known_B.sum()} rewards are not the sum of their parts with the weights "
        f"asked for ({_numbers(np.array(asked.reward_weights))}).",
        f"{_place(trace, at)}: parts {_numbers(paid_BF[at])}, expected {expected_B[at]:.4g}, "
        f"found {reward_B[at]:.4g}",
        measured=len(wrong) / float(known_B.sum()),
    )


LATE = (
    "Look at what your reward does with late rows: a time limit that counts the queue, a list that "
    "is too short, an index."
)


def _late(trace: Trace) -> StageFound | None:
    """Rows that stand late in their batch and are never paid."""
    late = never_paid_behind(trace)
    if late is None:
        return None
    found = departs(
        "rewards",
        f"From row {late.place} of a batch on, no row is ever paid, in {late.groups} groups; "
        f"before it some row is in {late.paid_before:.0%} of them. A row's pay depends on its "
        "place in the batch.",
        measured=late.paid_before,
    )
    return replace(found, by_chance=late.by_chance, direct=True, fix=LATE)


def _remembering(trace: Trace) -> StageFound | None:
    """The same words for the same prompt at another step, told right once and wrong once."""
    table = trace.rollouts
    if "completion" not in table or "prompt_id" not in table or "completion_tokens" not in table:
        return None
    for name, part in trace.parts().items():
        if len(np.unique(part[np.isfinite(part)])) != 2:
            continue
        pairs, changed = _pairs(trace, part)
        prompts = {str(table["prompt_id"][b]) for _, b in changed}
        if len(prompts) < FEWEST_PROMPTS or 2 * len(changed) <= len(pairs):
            continue
        a, b = changed[0]
        return replace(
            departs(
                "rewards",
                f"`{name}` pays {len(changed)} of {len(pairs)} completions differently from the "
                "same words at an earlier step: it remembers something.",
                f"{_place(trace, b)} earns {part[b]:g}, the same words at step "
                f"{int(table['step'][a])} earned {part[a]:g}",
                measured=len(changed) / len(pairs),
            ),
            by_chance=0.5 ** len(pairs),
        )
    return None


def _pairs(trace: Trace, part: np.ndarray) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Rows that say what a row of an earlier step said to the same prompt, and those of them that
    are paid otherwise."""
    table = trace.rollouts
    said, prompt = table.coded("completion"), table.coded("prompt_id")
    tokens, step = table["completion_tokens"].tolist(), table["step"].tolist()
    readable = np.array([bool(text) and "\ufffd" not in str(text) for text in said.texts])
    seen: dict[tuple[int, int, float], int] = {}
    pairs = []
    for row in np.flatnonzero(np.isfinite(part) & readable[said.codes]).tolist():
        key = (int(prompt.codes[row]), int(said.codes[row]), tokens[row])
        first = seen.setdefault(key, row)
        if step[first] != step[row]:
            pairs.append((first, row))
    return pairs, [(a, b) for a, b in pairs if abs(part[a] - part[b]) > PAID]


def _paid(trace: Trace) -> np.ndarray | None:
    """What each function paid, in the order of the weights; None where names are not their own."""
    names, parts = trace.settings.get("reward_weights"), trace.parts()
    if not names:
        return None
    nothing = np.full(len(trace.rollouts), np.nan)
    return np.stack([parts.get(name, nothing) for name in names], axis=1)


# -- advantages


@_told("advantages")
def along_advantages(trace: Trace, asked: Asked) -> StageFound:
    """The advantages that were trained on against those of the recorded rewards, at every step."""
    if trace.settings.get("algorithm") == "rloo":  # whose KL, in the reward, is not recorded
        raise NotSpecified("advantages of RLOO without the KL of each rollout")
    if trace.run.get("advantages_of_tokens"):
        raise NotSpecified("an advantage for each token")
    found_B, rows = trace.rollouts["advantage"], _whole_batches(trace, asked)
    if not len(rows):
        return unknown("advantages", "No whole group was recorded.")
    expected_B, at_B = _expected(trace, asked, rows), np.concatenate(rows)
    known_B = np.isfinite(found_B[at_B])
    off_B = np.where(known_B, _off(trace, asked, rows, expected_B), 0.0)
    steps = np.unique(trace.rollouts["step"][at_B])
    if not known_B.any():
        raise NotRecorded("rollouts.advantage")
    if off_B.max() <= ADVANTAGE:
        text = f"All {known_B.sum()} of {len(steps)} steps are those of their rewards."
        return same("advantages", text, float(off_B.max()), ADVANTAGE)
    first = int(np.argmax(off_B > ADVANTAGE))
    group = slice(first // asked.group * asked.group, (first // asked.group + 1) * asked.group)
    wrong = np.unique(trace.rollouts["step"][at_B[off_B > ADVANTAGE]])
    return departs(
        "advantages",
        f"{int((off_B > ADVANTAGE).sum())} of {known_B.sum()} advantages, at {len(wrong)} of "
        f"{len(steps)} steps from step {int(wrong[0])} on, are not those of their rewards "
        f"(baseline: the group; scale: {asked.scale}).",
        f"{_place(trace, int(at_B[group][0]))} and its group: rewards "
        f"{_numbers(trace.rollouts['reward'][at_B[group]])}, expected "
        f"{_numbers(expected_B[group])}, found {_numbers(found_B[at_B[group]])}",
        measured=float(off_B.max()),
        limit=ADVANTAGE,
    )


def expected_advantages(trace: Trace) -> np.ndarray:
    """What the rewards of every rollout ask for; NaN where that is not specified."""
    found_B = np.full(len(trace.rollouts), np.nan)
    with suppress(NotRecorded, NotSpecified):
        asked = asked_in(trace)
        if batches := _whole_batches(trace, asked):
            found_B[np.concatenate(batches)] = _expected(trace, asked, batches)
    return found_B


def _expected(trace: Trace, asked: Asked, batches: list[np.ndarray]) -> np.ndarray:
    """Of every row of some batches."""
    if asked.aggregation == "sum_then_normalize":
        reward_B = trace.rollouts["reward"]
        return np.concatenate(
            [of_totals(asked, reward_B[rows]) for rows in _together(asked, batches)]
        )
    paid_BF = _paid(trace)
    if paid_BF is None:
        raise NotSpecified("rewards of several functions with one name")
    return np.concatenate([advantages(asked, paid_BF[rows]) for rows in batches])


def _together(asked: Asked, batches: list[np.ndarray]) -> list[np.ndarray]:
    """Rows that are reckoned with at once: all of them where no group knows of another."""
    alone = asked.aggregation == "sum_then_normalize" and asked.scale in ("group", "none")
    return [np.concatenate(batches)] if alone else batches


def _off(
    trace: Trace, asked: Asked, batches: list[np.ndarray], expected_B: np.ndarray
) -> np.ndarray:
    """How far the advantages of some batches are from the specified ones, beyond rounding."""
    summed = asked.aggregation == "sum_then_normalize"
    paid, found_B = (
        trace.rollouts["reward"] if summed else _paid(trace),
        trace.rollouts["advantage"],
    )
    assert paid is not None, "else nothing is expected of them"
    parts = _together(asked, batches)
    due = np.split(expected_B, np.cumsum([len(rows) for rows in parts])[:-1])
    return np.concatenate(
        [
            beyond_rounding(asked, paid[rows], found_B[rows], due_B)
            for rows, due_B in zip(parts, due, strict=True)
        ]
    )


def _whole_batches(trace: Trace, asked: Asked) -> list[np.ndarray]:
    """Rows of every generation, group by group; one that is not whole is left out."""
    step, number = trace.rollouts["step"], trace.rollouts["rollout"]
    size = asked.group
    if asked.scale == "batch" or asked.aggregation == "normalize_then_sum":
        size = asked.rows_in_pass * asked.passes_in_generation
    batch = (
        step.astype(np.int64) * (int(number.max()) // size + 1) + number.astype(np.int64) // size
    )
    order = np.lexsort((number, batch))
    starts = np.flatnonzero(np.diff(batch[order], prepend=-1))
    whole = [rows for rows in np.split(order, starts[1:]) if len(rows) == size]
    return [rows for rows in whole if np.all(np.diff(number[rows]) == 1)]


# -- log-probs


@_told("log-probs")
def logprobs(trace: Trace, asked: Asked) -> StageFound:
    """Before a generation's first update the old policy is the policy: their log-probs agree."""
    given = trace.settings
    if given.get("algorithm") == "rloo":
        return unknown("log-probs", "RLOO keeps old log-probs of whole completions only.")
    if "old" not in _token_columns(trace):
        return _without_old(trace)
    if trains_later(given) or not updates_once({**given, "num_iterations": 1}):
        return unknown("log-probs", "Some rollouts are first trained after an update.")
    if given.get("dropout"):
        return unknown("log-probs", "With dropout no two passes agree.")
    limit = TOLERANCE[PRECISIONS.get(str(given.get("precision")), "bf16")]
    looked = _some(trace.token_steps)
    compared = 0
    for step in looked.tolist():
        tokens = trace.tokens(steps=[step])
        own = tokens.trained & (tokens.author == Author.MODEL)
        gap_T = np.abs(tokens.old - tokens.trainer)[own]
        known_T = np.isfinite(gap_T)
        compared += int(known_T.sum())
        if known_T.any() and not (
            gap_T[known_T].mean() <= limit.logprob and gap_T[known_T].max() <= limit.logprob_worst
        ):
            at = int(np.flatnonzero(own)[np.nanargmax(gap_T)])
            return departs(
                "log-probs",
                f"On the first pass over the batch of step {step} the old log-probs differ from "
                f"the policy's own by {gap_T[known_T].mean():.2g} nats a token; rounding explains "
                f"{limit.logprob:.2g}.",
                f"{_place(trace, int(tokens.rollout_rows[tokens.row[at]]))}, token "
                f"{int(tokens.position[at])} (id {int(tokens.ids[at])}): old "
                f"{float(tokens.old[at]):.4f}, policy {float(tokens.trainer[at]):.4f}",
                measured=float(gap_T[known_T].mean()),
                limit=limit.logprob,
            )
    if not compared:
        raise NotRecorded("tokens.old")
    return same("log-probs", f"Old and policy agree on {compared} tokens of {len(looked)} steps.")


def _without_old(trace: Trace) -> StageFound:
    """A pass may take its own log-probs for the old ones only while nothing was updated since its
    rollouts were sampled."""
    given = trace.settings
    once_each = updates_once(given) and not trains_later(given)
    if once_each or given.get("algorithm") != "grpo" or len(np.unique(trace.token_steps)) < 2:
        return unknown("log-probs", "The loss takes each pass's own log-probs for the old ones.")
    names = ("gradient_accumulation_steps", "steps_per_generation", "num_iterations")
    asked = ", ".join(f"`{name}` {given.get(name)}" for name in names)
    return departs(
        "log-probs",
        f"Some rollouts are trained after an update ({asked}), and the loss is given no old "
        "log-probs: it uses those of the current policy instead, so that the ratio is 1 and "
        "nothing is clipped.",
    )


def _token_columns(trace: Trace) -> set[str]:
    table = trace.tables["tokens"]
    return {"old"} if len(table) and table.column("old").null_count < len(table) else set()


def _some(steps: np.ndarray) -> np.ndarray:
    if len(steps) <= MOST_STEPS:
        return steps
    return steps[np.unique(np.linspace(0, len(steps) - 1, MOST_STEPS).astype(np.int64))]


# -- update


@_told("update")
def update(trace: Trace, asked: Asked) -> StageFound:
    """Is the rate in force the one asked for, and do weights stay where a step left them?"""
    for look in (_touched, _put_back, _scaled, _rates):
        found = look(trace, asked)
        if found is not None:
            return replace(found, direct=True)
    if not _rates_tell(trace, asked):
        return unknown("update", "The rate in force cannot be compared with the one asked for.")
    steps = int((trace.steps["step"] > 0).sum())
    still = "between" in trace.weights and "update_norm" in trace.weights
    also = ", and nothing else moves a weight" if still else ""
    return same("update", f"The rate of all {steps} steps is the one asked for{also}.")


def _rates_tell(trace: Trace, asked: Asked) -> bool:
    """Whether a step's rate says what the schedule is. In float16 a scaler skips steps, and the
    schedule waits with it."""
    if trace.settings.get("precision") == "float16" or asked.steps <= 0:
        return False
    rates = trace.steps["learning_rate"][trace.steps["step"] > 0]
    return bool(np.isfinite(rates).any())


def _rates(trace: Trace, asked: Asked) -> StageFound | None:
    if not _rates_tell(trace, asked):
        return None
    known = np.isfinite(trace.steps["learning_rate"]) & (trace.steps["step"] > 0)
    steps = [int(step) - 1 for step in trace.steps["step"][known]]
    found = trace.steps["learning_rate"][known].tolist()
    other = other_rate(asked, steps, found)
    if other is None:
        return None
    ends = " and stays there" if asked.schedule == GIVEN else ""
    return departs(
        "update",
        f"At step {other.step + 1} of {asked.steps} the rate in force is {other.found:.3g}{ends}; "
        f"{other.wanted:.3g} was asked for.",
        f"rates of the first steps: {_numbers(np.array(found), '.3g')}; of the last: "
        f"{_numbers(np.array(found[-3:]), '.3g')}",
        measured=other.found,
        fix=FACTOR_NOT_RATE if ends and never_begins(found, other.wanted) else None,
    )


def _touched(trace: Trace, asked: Asked) -> StageFound | None:
    """Between two steps nothing trains, so nothing may change a weight."""
    table = trace.weights
    if "between" not in table or "update_norm" not in table:
        return None
    steps = np.unique(table["step"]).astype(np.int64)
    between, moved = (_whole(table, name, steps) for name in ("between", "update_norm"))
    usual = float(np.median(moved))
    wrong = np.flatnonzero(between > TOUCHED * max(float(moved.max()), 1e-30))
    if not len(wrong):
        return None
    at = int(steps[wrong[0]])
    return departs(
        "update",
        f"Something other than the optimizer changes the weights: between step {at - 1} and step "
        f"{at} they move by {between[wrong[0]]:.3g}, and a step moves them by "
        f"{usual:.3g}. This happens before {len(wrong)} of {len(steps)} steps.",
        _largest(trace, at),
        measured=float(between[wrong[0]] / max(usual, 1e-30)),
        limit=TOUCHED,
    )


def _put_back(trace: Trace, asked: Asked) -> StageFound | None:
    """Where weights are after several steps lies further from their start than one step goes."""
    table = trace.weights
    if "travel" not in table or "update_norm" not in table:
        return None
    steps = np.unique(table["step"]).astype(np.int64)
    travel, moved = (_whole(table, name, steps) for name in ("travel", "update_norm"))
    longest = np.maximum.accumulate(np.nan_to_num(moved))
    wrong = np.flatnonzero((np.arange(len(steps)) >= FEWEST_STEPS) & (travel < longest / 2))
    if not len(wrong):
        return None
    at = wrong[0]
    return departs(
        "update",
        f"After step {int(steps[at])} the weights are {travel[at]:.3g} from where they began, and "
        f"one step moved them by {longest[at]:.3g}: they are put back.",
        measured=float(travel[at] / longest[at]),
    )


def _scaled(trace: Trace, asked: Asked) -> StageFound | None:
    """Every step multiplies all weights by the same number, whatever the gradient is."""
    table = trace.weights
    if "norm" not in table or "update_norm" not in table:
        return None
    steps = np.unique(table["step"]).astype(np.int64)
    looked = _some(steps[np.isin(steps - 1, steps)]).tolist()
    each = [common_factor(_scaling(table, step), _rate_at(trace, step)) for step in looked]
    factors = np.array([one for one in each if one is not None])
    if len(factors) < FEWEST_STEPS:
        return None
    factor = float(np.median(factors))
    alike = int((np.abs(factors - factor) <= ALIKE * abs(factor - 1)).sum())
    if 2 * alike <= len(looked):
        return None
    norm = _whole(table, "norm", steps)
    found = departs(
        "update",
        f"{every_step(factor)} (at {alike} of {len(looked)} steps); their norm went from "
        f"{norm[0]:.3g} to {norm[-1]:.3g}.",
        measured=factor,
    )
    return replace(found, fix=WITHOUT_RATE)


def _scaling(table: Any, step: int) -> Scaling:
    """What a step did to every weight, along the weight."""
    _, name = table.coded("name")
    known = looked_at(table) & np.isfinite(table["norm"])
    before, after = (np.flatnonzero(known & (table["step"] == at)) for at in (step - 1, step))
    _, old, new = np.intersect1d(name[before], name[after], return_indices=True)
    size = table["size"] if "size" in table else np.ones(len(table))
    norms = table["norm"][before[old]], table["norm"][after[new]]
    return Scaling.of_norms(*norms, table["update_norm"][after[new]], size[after[new]])


def _rate_at(trace: Trace, step: int) -> float:
    found = trace.steps["learning_rate"][trace.steps["step"] == step]
    return float(np.nan_to_num(found).max(initial=0.0))


def _whole(table: Any, name: str, steps: np.ndarray) -> np.ndarray:
    """The norm over all weights at each step; NaN where one is not known."""
    index = np.searchsorted(steps, table["step"])
    values = np.where(looked_at(table), table[name], 0.0)
    return np.asarray(np.sqrt(np.bincount(index, values**2, minlength=len(steps))))


def _largest(trace: Trace, step: int) -> str:
    table = trace.weights
    here = np.flatnonzero(table["step"] == step)
    at = here[np.nanargmax(table["between"][here])]
    return f"`{table['name'][at]}` moves by {table['between'][at]:.3g} before step {step}"


LOOKS: Mapping[str, Look] = {
    "mask": mask,
    "rewards": rewards,
    "advantages": lambda trace: (
        of_watched_rows(trace) or of_watched_signs(trace) or along_advantages(trace)
    ),
    "log-probs": lambda trace: of_watched_labels(trace) or logprobs(trace),
    "ratio and KL": of_watched_ratio,
    "update": update,
}
"""By stage. Rows are H33's; the other stages need a model."""


def _known(given: Mapping[str, Any], name: str) -> Any:
    if given.get(name) is None:
        raise NotRecorded(f"settings.{name}")
    return given[name]


def _count(given: Mapping[str, Any], name: str) -> int:
    return int(given.get(name) or 1)


def _place(trace: Trace, row: int) -> str:
    table = trace.rollouts
    return f"step {int(table['step'][row])}, rollout {int(table['rollout'][row])}"


def _numbers(values: np.ndarray, how: str = ".3f") -> str:
    shown = ", ".join(format(float(value), how) for value in values[:SHOWN])
    return f"[{shown}{', ...' if len(values) > SHOWN else ''}]"
