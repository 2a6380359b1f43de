"""What is held out is also trained on, so memory looks like learning.

## What goes wrong
An evaluation set that falls back to the training data, or shares rows with it, rises as the policy
remembers answers. The run looks healthy and the policy has learnt nothing that carries over; or the
curve is flat because what is held out was in the base model's training data and is solved already.

## Sign
The run's own config: a held-out dataset that names the path, config and split of a training one,
and rows that the other has too. A fault. The config of a trainer that is not ours is not recorded;
of TRL's trainers it is recorded which rows an evaluation sampled, and one of them in a loss that is
trained through is a fault: evaluations must leave nothing behind.

## Probe
Ids and questions of the held-out problems among those of the training data; for any TRL trainer the
prompts of `eval_dataset` among those of `train_dataset`. A fault where one in a hundred is there.
Prompts that most training rows share with others (one text for every game, or for every image) name
a task and not a problem: then it cannot be tested.

## Experiment
A planted fault against none; matched seeds. The outcome is the reward on problems that neither arm
has trained on.

## Fix
Two splits; assert before training that ids, questions and paragraphs do not meet.

## Not to be confused with
H08 evaluation-mismatch: the two disagree where they should agree. H47 seed-noise: a held-out set
too small to show anything.

## References
verifiers' `Environment.evaluate` falls back to the training set where there is no other. TRL 0.17
trains on what an evaluation outside of the schedule sampled.
Threshold: by reason; the splits of the 26 healthy lab runs are drawn apart, and 0 of 26 alarm
(interval 0 to 13 %).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flatline.errors import FlatlineError, NotRecorded
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.tasks.datasets import DatasetSpec, parse_specs
from flatline.trace import Trace

if TYPE_CHECKING:
    from flatline.live.subject import Subject

SHARED = 0.01
"""Share of the held-out problems that may also be trained on."""
NAMED = 0.5
"""Distinct prompts per training row, below which a prompt is no name of a problem. Healthy: 1."""


class EvaluationLeak(Hypothesis):
    id = "H46"
    name = "evaluation-leak"
    headline = "Your held-out problems are also in the training data."
    meaning = "The held-out curve measures memory, so it says nothing about the policy."
    fix = "Hold out another split, and assert that no id or question is in both."
    mechanism = "Held-out problems are trained on; in the other arm none is."

    def sign(self, trace: Trace) -> Finding:
        """Does the config hold out what it trains on?"""
        evaluated = trace.steps["heldout_rows"] if "heldout_rows" in trace.steps else np.zeros(0)
        if np.nansum(evaluated) > 0:
            return self._trained_on(trace, evaluated)
        requested = trace.run.get("requested")
        if not isinstance(requested, dict) or not requested.get("datasets"):
            raise NotRecorded("run.requested.datasets")
        if not requested.get("eval_limit"):
            return self.not_applicable("nothing is held out.", excluded_by="eval_limit")
        given = requested.get("eval_datasets")
        if given is None:
            return self.found(
                Level.OK,
                "The validation split of the training data is held out.",
                excluded_by="eval_datasets",
            )
        try:
            known, asked = parse_specs(str(requested["datasets"])), parse_specs(str(given))
        except FlatlineError:
            return self.too_little(f"`{given}` and the training data cannot be read as datasets")
        shared = _same_rows(known, asked)
        if not shared and _slices_of_one(known, asked):
            return self.too_little(f"`{given}` is a slice of what is trained on; see the probe")
        if not shared:
            return self.found(
                Level.OK,
                f"`{given}` is held out, which is not trained on.",
                excluded_by="eval_datasets",
            )
        return self.found(
            Level.FAULT,
            f"`{shared}` is trained on and held out.",
            expected="two splits",
            proven=True,
        )

    def _trained_on(self, trace: Trace, evaluated: np.ndarray) -> Finding:
        steps = trace.steps["step"][evaluated > 0].astype(int)
        return self.found(
            Level.FAULT,
            f"{int(np.nansum(evaluated))} rows that an evaluation sampled were trained on, at "
            f"{len(steps)} of {len(evaluated)} steps, step {steps[0]} the first.",
            measured=float(np.nansum(evaluated)),
            expected="0",
            severity=10.0,
            headline="Completions of your evaluation are trained on.",
            fix="Let what an evaluation samples never reach the buffer that training reads from; "
            "TRL from 0.18 on keeps the two apart.",
            proven=True,
        )

    def probe(self, subject: "Subject") -> Finding:
        """Are held-out problems among the training problems?"""
        problems = subject.problems()
        rows, heldout = problems.training, problems.heldout
        if not heldout:
            return self.not_applicable("nothing is held out.", excluded_by="eval_dataset")
        train = set(rows)
        if not rows:
            return self.too_little("the training data has no rows that could be compared")
        if len(train) < NAMED * len(rows):
            return self.too_little(
                f"{len(rows)} training rows have {len(train)} prompts, so that a prompt names no "
                "problem; compare what tells the rows apart"
            )
        both = [name for name in heldout if name in train]
        share = len(both) / len(heldout)
        return self.found(
            Level.FAULT if share > SHARED else Level.OK,
            f"{len(both)} of {len(heldout)} held-out problems are also trained on.",
            measured=share,
            expected="0",
            looked_at=len(heldout),
            severity=share / SHARED,
            evidence=[Evidence(text=f"in both: {name[:120]!r}") for name in both[:3]],
            proven=True,
        )


def _same_rows(train: Sequence[DatasetSpec], heldout: Sequence[DatasetSpec]) -> str | None:
    """The held-out spec whose rows are certainly among the training rows."""
    for one in heldout:
        if any(_covers(other, one) for other in train):
            return one.text
    return None


def _slices_of_one(train: Sequence[DatasetSpec], heldout: Sequence[DatasetSpec]) -> bool:
    """Whether parts of one split are trained on and held out that are not certainly apart."""
    return any(
        _of_one_split(other, one) and not (_ends_before(other, one) or _ends_before(one, other))
        for one in heldout
        for other in train
    )


def _ends_before(first: DatasetSpec, second: DatasetSpec) -> bool:
    """Whether one slice ends where the other begins, or before, in one unit."""
    ends = [first.stop or "", second.start or ""]
    if ends[0].endswith("%") != ends[1].endswith("%"):
        return False
    numbers = [end.removesuffix("%") for end in ends]
    return all(one.isdigit() for one in numbers) and int(numbers[0]) <= int(numbers[1])


def _of_one_split(train: DatasetSpec, heldout: DatasetSpec) -> bool:
    names = [(s.path, s.config or None, s.split_or(d)) for s, d in _with_default(train, heldout)]
    return names[0] == names[1]


def _covers(train: DatasetSpec, heldout: DatasetSpec) -> bool:
    """Whether both name the same rows, or all rows of a split against some of them."""
    whole = (None, None) in ((train.start, train.stop), (heldout.start, heldout.stop))
    same = (train.start, train.stop) == (heldout.start, heldout.stop)
    return _of_one_split(train, heldout) and (whole or same)


def _with_default(train: DatasetSpec, heldout: DatasetSpec) -> list[tuple[DatasetSpec, str]]:
    return [(train, "train"), (heldout, "validation")]
