"""Why a hypothesis could not be tested, and what to do about it.

What is missing has another reason in a log than in a run that flatline recorded: a log lacks what
its trainer never wrote down, a recorded run lacks what its trainer does not have. Only the first
is fixed by recording.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from flatline.hypotheses.base import Finding, Level
from flatline.hypotheses.right import UNDECIDED
from flatline.trace.importers.rollouts import KINDS

RECORD_IT = (
    'Record the run with `flatline.attach(trainer, "runs/x")` (with `flatline.Recorder` where the '
    "trainer is not TRL's)"
)


class Origin(StrEnum):
    """Where what was looked at comes from."""

    LOG = "log"
    """What a trainer logged by step."""
    DUMP = "dump"
    """Rollouts as another framework wrote them."""
    ATTACHED = "attached"
    """Recorded by `flatline.attach`."""
    RECORDER = "recorder"
    """Recorded by somebody's own loop with `flatline.Recorder`."""
    WATCHED = "watched"
    """Recorded by `flatline.watch`."""
    LIVE = "live"
    """A trainer at hand."""
    LOOP = "loop"
    """A loop at hand, as a `flatline.Loop`."""
    TINKER = "tinker"
    """A loop on the Tinker API, recorded or at hand."""
    SKYRL = "skyrl"
    """Recorded by SkyRL's callback."""
    LOST = "lost"
    """Recorded, and its `run.json` is missing: nobody knows by what, and with which settings."""


class Lack(NamedTuple):
    """Why something is not there, and what to do; empty where nothing can be done."""

    why: str
    do: str = ""


_NO_LOGPROBS = Lack(
    "this trainer's sampler gives no log-probs (beams and greedy search have none)",
    "Sample token by token, with TRL's own `generate` or with vLLM (`use_vllm=True`)",
)
_NO_GOLD = Lack(
    "the dataset names no gold answer",
    "Give the dataset a column `answer` with the gold answer",
)
_NO_RIGHT_OR_WRONG = Lack(
    "no reward function pays one amount for a right answer and nothing for a wrong one",
    "Add a reward function that pays 1 for a right answer and 0 for a wrong one, or name yours: "
    '`correct="NAME"`',
)
WHICH_IS_RIGHT = Lack(
    "several parts of the reward could say which answers are right",
    'Say which one does: `correct="NAME"`, or `--correct NAME` for `flatline diagnose`',
)
"""What only the user can say; `Report.question` names the parts."""
NO_RUN_FILE = Lack(
    "`run.json`, which holds the settings of a run, is missing",
    "Put `run.json` back into the folder of the run",
)
_NOT_LOGGED = Lack("the trainer did not log it", "Log every step (`logging_steps=1`)")
_OF_TRL: Mapping[str, Lack] = {
    "tokens.sampler": _NO_LOGPROBS,
    "rollouts.gold": _NO_GOLD,
    "task.": Lack("only flatline's own tasks can be run by a script"),
    "rollouts.parts": _NO_RIGHT_OR_WRONG,
    "steps.heldout_reward": Lack(
        "nothing was evaluated",
        'Give the trainer an `eval_dataset` and set `eval_strategy="steps"`',
    ),
    "steps.": _NOT_LOGGED,
}
"""By the beginning of a column's name; the first that fits counts."""
_OF_WATCH: Mapping[str, Lack] = {
    "rollouts.reward": Lack("no reward was given", "Give `watch.rewards(...)` the rewards"),
    "rollouts.parts": Lack(
        "no part of the reward was given",
        "Give `watch.rewards(..., parts=...)` the parts of the reward, one of them 1 for a right "
        "answer and 0 for a wrong one",
    ),
    "rollouts.advantage": Lack("the weights in the loss do not add up to 0 inside groups"),
    "tokens.sampler": Lack(
        "nothing was seen to be sampled with this model",
        "Sample with the watched model, or record with `flatline.Recorder`",
    ),
    "tokens.": Lack("no logits of whole rows were seen; the notes of the run say why"),
}
_OF_LOOP: Mapping[str, Lack] = {
    "rollouts.gold": Lack(
        "no gold answers were given", "Give the batches of `sample` the right answers (`gold`)"
    ),
    "rollouts.parts": Lack(
        "no part of the reward was given",
        "Give the batches of `sample` the parts of the reward (`parts`), and call the one that "
        "says right or wrong `accuracy`",
    ),
    "rollouts.tool": Lack(
        "a Loop does not say what its tools did",
        "Record a run with `flatline.Recorder`, which takes tool calls",
    ),
    "rollouts.advantage": Lack("the weights in the loss do not add up to 0 inside groups"),
    "tokens.sampler": Lack(
        "the model of this Loop was not seen to sample", "Sample with the model that is given"
    ),
}
_OF_TINKER: Mapping[str, Lack] = {
    "rollouts.reward": Lack(
        "no reward was given", "Call `flatline.tinker.rewards(values, sequences)` in the loop"
    ),
    "rollouts.parts": Lack(
        "no part of the reward was given",
        "Give `flatline.tinker.rewards(..., parts=...)` the parts of the reward, one of them 1 for "
        "a right answer and 0 for a wrong one",
    ),
    "rollouts.gold": Lack(
        "no gold answers were given", "Give `flatline.tinker.rewards(..., gold=...)` the answers"
    ),
    "tokens.": Lack("the Tinker API does not show it"),
    "weights.": Lack("the Tinker API shows no weights"),
}
_OF_SKYRL: Mapping[str, Lack] = {
    "rollouts.reward": Lack("SkyRL takes it out of what it hands to its callbacks"),
    "": Lack("SkyRL does not hand it to its callbacks"),
}
_NOT_GIVEN = Lack("this trainer does not give it")
_NOT_WATCHED = Lack("hooks on model and optimizer alone do not show it")
_LOGGED_WITH = {
    "steps": "all columns of a step that you have (`log_step`)",
    "rollouts": "all columns of a rollout that you have (`log_rollouts`)",
    "tokens": "the tokens of some steps (`log_tokens`)",
    "weights": "the weights (`log_weights`)",
    "settings": "the settings of the run (`settings=`)",
}
"""Table -> what `flatline.Recorder` is to be given."""


def origin_of(run: Mapping[str, Any]) -> Origin:
    """From what `run.json`, or the importer, says."""
    source = str(run.get("source") or "")
    if not source and "schema" not in run:
        return Origin.LOST
    if source.startswith("import"):
        return Origin.DUMP if source.removeprefix("import:") in KINDS else Origin.LOG
    known = {
        "recorder": Origin.RECORDER,
        "watch": Origin.WATCHED,
        "tinker": Origin.TINKER,
        "skyrl": Origin.SKYRL,
    }
    return known.get(source, Origin.ATTACHED)


def lack(origin: Origin, column: str) -> Lack:
    """Why a column is not there."""
    if column == UNDECIDED:
        return WHICH_IS_RIGHT
    if origin is Origin.LOST:
        return NO_RUN_FILE if column.startswith("settings.") else Lack("it was not recorded")
    if origin is Origin.LOG:
        return Lack("this log does not have it", RECORD_IT)
    if origin is Origin.DUMP:
        return Lack("this dump does not have it", "Record the run with `flatline.Recorder`")
    if origin is Origin.RECORDER:
        way = _LOGGED_WITH.get(column.partition(".")[0])
        return Lack("it was not recorded", f"Also give `flatline.Recorder` {way}" if way else "")
    adapters = {
        Origin.WATCHED: _OF_WATCH,
        Origin.LOOP: _OF_LOOP,
        Origin.TINKER: _OF_TINKER,
        Origin.SKYRL: _OF_SKYRL,
    }
    reasons = adapters.get(origin, _OF_TRL)
    known = (found for name, found in reasons.items() if column.startswith(name))
    return next(known, _NOT_WATCHED if origin is Origin.WATCHED else _NOT_GIVEN)


def more(origin: Origin) -> str:
    """What to do where there is too little of everything."""
    if origin is Origin.LOG:
        return RECORD_IT
    if origin is Origin.LIVE:
        return (
            'Record some steps with `flatline.attach(trainer, "runs/x")` and diagnose them with '
            "`flatline diagnose runs/x`"
        )
    if origin is Origin.LOOP:
        return 'Record a run with `flatline.watch(model, optimizer, "runs/x")` and diagnose it'
    return "Diagnose a longer run, or one with more prompts in a step"


class NextStep(NamedTuple):
    """What lets most of the untested be tested."""

    do: str
    causes: int
    """Causes that can then be tested, at most."""


def next_step(findings: Iterable[Finding]) -> NextStep | None:
    """The one thing that lets most of the untested be tested; None where nothing does."""
    needs = Counter(f.needs for f in findings if f.level is Level.UNKNOWN and f.needs)
    return NextStep(*needs.most_common(1)[0]) if needs else None
