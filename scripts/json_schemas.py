"""The shapes that `--json` prints, and their JSON Schemas: `python scripts/json_schemas.py`.

Writes `docs/schemas/NAME.json`, one per shape; the number in a name is the version of the shape. A
key may be added within a version; a key that goes, or means something else, makes a new one. Tests
hold real output against these models with nothing else allowed, so that no key is undocumented.
"""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


class Shape(BaseModel):
    """What all have in common: the line under a field is its description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Estimate(Shape):
    """A number with its 95 % interval."""

    value: float | None
    """null where there is nothing to average."""
    low: float | None
    """null where it is open."""
    high: float | None
    """null where it is open."""
    n: int
    """Independent units (prompts, problems, groups, steps or seeds), never rollouts."""


class Evidence(Shape):
    """One example that shows a finding."""

    text: str
    """What is seen; may quote a model."""
    step: int | None
    """Optimizer step."""
    rollout: int | None
    """Its number in that step."""


class Where(Shape):
    """A line of the running code that may have made a value what it is."""

    file: str
    """Relative to the working directory, or to the package that it belongs to."""
    line: int
    """Where the statement begins."""
    source: str
    """The statement's first line."""
    function: str
    """With its class."""


class Finding(Shape):
    """What one hypothesis says."""

    hypothesis: str
    """Its code, such as `H09`; never reused."""
    name: str
    """Its kebab-case name."""
    level: Literal["fault", "suspect", "note", "ok", "unknown"]
    """How sure."""
    bearing: Literal["supports", "contradicts", "says nothing"]
    """What the finding does to the hypothesis."""
    headline: str = ""
    """The cause in plain words, of an alarm or a note that points at one."""
    text: str
    """What was seen; may quote a model."""
    measured: Estimate | float | None
    """The value behind the text."""
    expected: str
    """What a healthy run shows."""
    evidence: list[Evidence]
    """Examples, the plainest first."""
    where: list[Where] = []
    """Lines that may have made it so, the likeliest first; of a checkup alone."""
    meaning: str
    """Why it matters."""
    fix: str
    """What to do."""
    explains: list[str]
    """Codes of hypotheses that alarm only because of this one."""
    points_at_cause: bool = False
    """A note that may name the cause, if too rare or too little for an alarm."""
    needs: str = ""
    """What would let it be tested, as something to do; of level `unknown` alone."""


class Trend(Shape):
    """Whether the reward moves."""

    change: Estimate
    """Last third of the steps minus the first."""
    flat: bool | None
    """Whether a change that matters is excluded; null where that cannot be told."""
    text: str
    """The same in words."""


class NotKept(Shape):
    """Something that a checkup could not put back."""

    where: str
    """The way to it, from what the user gave."""
    what: str
    """What it is: a generator, an open file, a network client."""


class PutBack(Shape):
    """How a checkup left the trainer."""

    verified: bool
    """Everything that was kept is as it was: the two digests are the same."""
    kept: int
    """Objects and tensors that were kept."""
    digest_before: str
    """Of all of them, before anything was tried; comparable within one checkup alone."""
    digest_after: str
    """After the last putting back."""
    differs: list[str]
    """Where they are not the same; the trainer should then be built anew."""
    not_kept: list[NotKept]
    """What cannot be put back; it was named on stderr before anything was tried."""
    not_looked_into: list[str]
    """What was too large, or whose inside nobody knows."""
    calls: dict[str, int]
    """By name: how often a function of the user's was called for the checkup."""


class Diagnosis(Shape):
    """`flatline diagnose --json`, `flatline checkup --json`, and `diagnosis.json` of a run."""

    version: Literal[1]
    """Of this shape."""
    subject: str
    """What was looked at."""
    outcome: Literal["alarm", "unexplained", "healthy", "not enough to tell"] = "not enough to tell"
    """What it comes to; see docs/answers.md."""
    headline: str = ""
    """The answer in one sentence, in plain words and without codes."""
    summary: str
    """The answer in a few sentences."""
    next: str = ""
    """The one thing to do next; empty where nothing is left to do."""
    tested: int
    """Hypotheses that could be tested."""
    trend: Trend | None
    """null where there is no history."""
    damaged: bool = False
    """Part of it could not be read."""
    troubles: list[Finding] = []
    """What the run itself shows to be wrong, whatever its cause: R1 recording-damaged, R2 no-step,
    R3 reward-falls, R4 reward-flat, R5 ended, R6 broke-off."""
    caveats: list[str] = []
    """What was lost, left out or assumed when it was read."""
    put_back: PutBack | None = None
    """Of a checkup alone; null of a run or a log."""
    remarks: list[str] = []
    """What the numbers of a log say beside any cause: parts of the reward, settings, plan."""
    known: list[str] = []
    """Codes of causes that the baseline knows already."""
    explained_by: dict[str, str]
    """Alarm -> the alarm that produces it."""
    findings: list[Finding]
    """One per hypothesis, most likely cause first."""


class Sampling(Shape):
    """How tokens were drawn."""

    temperature: float
    """0 is greedy."""
    top_p: float
    """1 cuts nothing."""
    top_k: int
    """0 cuts nothing."""
    min_p: float
    """0 cuts nothing."""


class Score(Shape):
    """One model on the problems of a task."""

    model: str
    """Name or path."""
    task: str
    """Name of the task."""
    datasets: str
    """As given."""
    split: str
    """Where the spec names none."""
    sampling: Sampling
    """How tokens were drawn."""
    seed: int
    """Of the dice."""
    parts: dict[str, Estimate]
    """Every part of the reward; `combined` is the reward."""
    per_hop: dict[str, dict[str, Estimate]]
    """The same by number of hops."""
    pass_at_k: dict[str, Estimate]
    """Chance that one of k plays is right."""
    group_std: Estimate
    """Standard deviation of the reward inside a group."""
    finish: dict[str, int]
    """Why plays ended."""
    events: dict[str, int]
    """Malformed calls and answers, and the like."""
    problems: int
    """Problems played."""
    samples: int
    """Plays of each."""
    tokens: int
    """Sampled tokens."""
    seconds: float
    """Time of play."""


class Difference(Shape):
    """Two models on the same problems with the same dice."""

    model: str
    """The second model."""
    minus: str
    """The first model."""
    parts: dict[str, Estimate]
    """Second minus first, paired by problem."""


class Evaluation(Score):
    """`flatline evaluate --json`."""

    other: Score | None = None
    """With `--compare`: the second model."""
    difference: Difference | None = None
    """With `--compare`: second minus first."""


class Mechanism(Shape):
    """Whether what the hypothesis describes is there, and goes."""

    control: Literal["present", "absent", "unknown"]
    """In the setup as it is."""
    treated: Literal["present", "absent", "unknown"] | None
    """With the suspected cause taken away; null where that was not looked at."""
    direct: bool
    """Seen in the trainer itself, not by its effects."""
    text: str
    """What was looked at."""


class Verdict(Shape):
    """`flatline investigate --json`; a list of these where several hypotheses were tested."""

    hypothesis: str
    """Its code."""
    verdict: Literal["validated", "partial", "invalidated", "inconclusive"]
    """In the words of the journal."""
    confidence: Literal["high", "medium", "low"]
    """How sure."""
    effect: Estimate
    """Outcome without the suspected cause minus outcome with it."""
    smallest_effect: float
    """What would matter; written down before the runs."""
    reason: str
    """Why this verdict."""
    would_change: str
    """What would change it."""
    seeds: int
    """Matched seeds."""
    alpha: float
    """Chance of a false validation that was allowed."""
    mechanism: Mechanism
    """The other half of a proof."""
    change: str = ""
    """What to change in the script, as a diff where it follows from its text; only with `--script`
    and where the cause was validated."""


SHAPES: dict[str, type[Shape]] = {
    "diagnosis-1": Diagnosis,
    "evaluation-1": Evaluation,
    "verdict-1": Verdict,
}
"""Name of a schema -> its shape."""


def schema_text(name: str) -> str:
    """The file of one shape."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"flatline:{name}"}
    return json.dumps({**head, **SHAPES[name].model_json_schema()}, indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in SHAPES:
        (FOLDER / f"{each}.json").write_text(schema_text(each))
        print(FOLDER / f"{each}.json")
