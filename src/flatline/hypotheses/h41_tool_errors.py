"""The tool does not answer: calls fail, or what the model writes is not read as a call.

## What goes wrong
The sampler's parser expects another format than the template teaches, the JSON is strict where the
model is not, or the backend times out. Episodes go on without what they asked for, or end with a
call taken for the final answer. The policy is punished for using its tool.

## Sign
- Suspected if the share of calls that failed or could not be read is certainly above 0.1 in the
  first eight groups of the run (later a broken policy may write them), or if the share on which the
  tool itself failed is, in the first 32 groups.
- Also suspected: rollouts that hold the text of a call (`<tool_call>`, `[TOOL_CALLS]`,
  `<function=`) and ended by themselves in one turn although no call was counted. They are certainly
  above 0.01 of the first eight groups if the call can be read, above half if it cannot (a policy
  that is still learning writes broken ones); after several turns something has answered.
- In a log without rollouts: a logged share, such as TRL's `tools/failure_frequency`, at the first
  eight steps; or in the last third of them, certainly 0.1 above the first and certainly risen,
  while the reward does not rise.

A trainer that was given no tool has none to fail.

## Probe
The same, on one batch.

## Experiment
A planted fault against none; matched seeds, outcome is the held-out reward. What a tool that never
fails would give: `flatline checkup --tools`.

## Fix
The parser that belongs to the template; errors as observations that say what to fix; retries; drop
episodes that the backend broke.

## Not to be confused with
H04 context-truncation: calls are cut off by a limit in the middle. H39 reward-parser: the reward,
not the tool, misreads. H24 learning-rate and H21 sampling-parameters: a policy that is broken, or
drawn too hot, writes broken calls.

## References
vLLM issue 25108; SimpleTIR (2509.02479, void turns); TRL's tool metrics.
Thresholds: in 24 healthy lab runs with tools up to 0.6 % of the first calls fail, up to 2 % of all,
and no call goes unread; 0 of 26 alarm (interval 0 to 13 %).
"""

import json
import re

import numpy as np

from flatline.errors import NotRecorded
from flatline.hypotheses.answers import ENDED
from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level
from flatline.hypotheses.column_movement import change_of, surely
from flatline.hypotheses.course import stretches
from flatline.hypotheses.drift import first_rows
from flatline.hypotheses.groups import mean_of, reward_rises
from flatline.hypotheses.trend import thirds
from flatline.stats import cluster_mean
from flatline.trace import Trace
from flatline.trace.importers.resolve import plain

FAILED = 0.1
"""Share of calls. Healthy: up to 0.006."""
UNREAD = 0.01
"""Share of rollouts that end in the text of a call. Healthy: 0."""
BEGINNING = 8
"""Groups that show how a run begins: later, calls may be what a broken policy makes of them."""
TOOL_ALONE = 32
"""Groups in which errors of the tool itself are counted: what a broken policy writes is malformed,
and never gets there."""
FEWEST = 4
"""Groups with calls."""
CALLS = ("<tool_call>", "[TOOL_CALLS]", "<function=", "<|python_tag|>", "<｜tool▁call▁begin｜>")
"""How models begin a call."""
BETWEEN_MARKS = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
UNREADABLE = 0.5
"""Share of the rollouts with a call that cannot be read as one either, from which on the policy was
taught another form than the parser reads. Below it, it writes some that are broken."""
LOGGED = "tools/failure_frequency"
"""What TRL calls the share."""
_FAILING = re.compile(
    r"(.*[/._])?tools?[/._ ](call[s/._]*)?(fail|error)\w*([/_.](frequency|rate|share|ratio|frac))?"
)
"""Names of the share of calls that fail."""


FAILURES = ("tool_errors", "malformed_calls")
"""Columns that count calls which failed."""


class ToolErrors(Hypothesis):
    id = "H41"
    name = "tool-errors"
    headline = "Your tool calls fail or are never executed."
    meaning = "The policy asks and gets no answer, so it cannot learn to ask."
    fix = "Run the quoted call by hand; use the parser that belongs to the chat template."
    mechanism = "Calls fail or are not read; in the other arm they are answered."
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Do calls fail, or go unread?"""
        if not len(trace.rollouts):
            return self._from_steps(trace)
        rows = first_rows(trace, BEGINNING)
        calls = trace.rollouts["tool_calls"][rows]
        errors = _count(trace, "tool_errors")
        failed = errors + _count(trace, "malformed_calls")
        tried = np.nan_to_num(trace.rollouts["tool_calls"]) + failed
        # Calls that were not counted may have been read all the same.
        none = (tried[rows] == 0) & np.isfinite(calls) & ~(_count(trace, "turns")[rows] > 1)
        unread = None if trace.settings.get("tools") == 0 else self._unread(trace, rows, none)
        if unread is not None:
            return unread
        if not tried[rows].any():
            return self._none(trace, len(rows))
        if not any(name in trace.rollouts for name in FAILURES):
            raise NotRecorded(f"rollouts.{FAILURES[0]}")
        begun = self._failing(trace, rows, failed, tried)
        alone = self._failing(trace, first_rows(trace, TOOL_ALONE), errors, tried)
        return alone if begun.level is Level.OK and alone.level is Level.SUSPECT else begun

    def _none(self, trace: Trace, rows: int) -> Finding:
        """Calls that nobody read are no calls either: texts must have been looked at for them."""
        if trace.settings.get("tools") == 0:
            return self.not_applicable("no rollout calls a tool.", excluded_by="tools")
        if "completion" not in trace.rollouts:
            raise NotRecorded("rollouts.completion")
        return self.not_applicable("no rollout calls a tool.", looked_at=rows)

    def _failing(
        self, trace: Trace, rows: np.ndarray, failed: np.ndarray, tried: np.ndarray
    ) -> Finding:
        """Which share of the calls in some rollouts failed?"""
        calls = tried[rows].astype(int)
        shares = failed[rows] / np.maximum(calls, 1)
        share = cluster_mean(np.repeat(shares, calls), np.repeat(trace.groups().index[rows], calls))
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more groups with calls are needed")
        return self.found(
            Level.SUSPECT if share.low > FAILED else Level.OK,
            f"{share.value:.1%} of {calls.sum()} calls in the first steps failed or could not be "
            "read.",
            measured=share,
            expected=f"below {FAILED:.0%}",
            severity=share.value / FAILED,
            evidence=_examples(trace, rows[failed[rows] > 0]),
        )

    def _unread(self, trace: Trace, rows: np.ndarray, none: np.ndarray) -> Finding | None:
        """Rollouts that hold the text of a call, of those that are known to have none."""
        if "completion" not in trace.rollouts:
            return None
        texts = trace.rollouts["completion"][rows]
        whole = np.array([end in ENDED for end in _ends(trace)[rows]], dtype=bool)
        for written, limit in ((_whole_call, UNREAD), (_begun_call, UNREADABLE)):
            lost = np.array([written(text) for text in texts], dtype=bool) & whole & none
            share = cluster_mean(lost.astype(float), trace.groups().index[rows])
            if share.low > limit:
                break
        else:
            return None
        return self.found(
            Level.SUSPECT,
            f"{lost.sum()} of the {len(rows)} rollouts of the first {share.n} groups hold the text "
            "of a call that was not read as one.",
            measured=share,
            expected="0",
            severity=1 + share.value,
            evidence=_examples(trace, rows[lost]),
        )

    def _from_steps(self, trace: Trace) -> Finding:
        logged = _logged(trace)
        share = mean_of(logged[:BEGINNING])
        later = self._later(trace, logged)
        if later is not None:
            return later
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more logged steps are needed")
        return self.found(
            Level.SUSPECT if share.low > FAILED else Level.OK,
            f"{share.value:.1%} of the calls failed, as logged at the first {share.n} steps.",
            measured=share,
            expected=f"below {FAILED:.0%}",
            severity=share.value / FAILED,
        )

    def _later(self, trace: Trace, logged: np.ndarray) -> Finding | None:
        """Calls that fail more often than at the start, while the reward does not rise."""
        step = trace.steps["step"]
        found = thirds(logged, step)
        if found is None or surely(change_of(logged, step)) < 1 or reward_rises(trace):
            return None
        late, early = mean_of(found.late), float(found.early.mean())
        if not late.low > FAILED + early:
            return None
        known = np.isfinite(logged)
        parts = stretches(logged[known])
        since = f" (more since step {step[known][parts[1].first]:g})" if len(parts) > 1 else ""
        return self.found(
            Level.SUSPECT,
            f"{early:.0%} of the calls fail in the first third of the steps and {late.value:.0%} "
            f"in the last{since}, and the reward does not rise.",
            headline="Your tool calls fail more and more often.",
            measured=late,
            expected=f"below {FAILED:.0%}",
            severity=late.value / FAILED,
            fix="Run a call by hand that fails now; look at what changed in the tools or around "
            "them when it began.",
        )


def _logged(trace: Trace) -> np.ndarray:
    """The share of calls that fail, as a log has it."""
    names = [name for name in trace.metric_names if _FAILING.fullmatch(plain(name))]
    for name in names:
        values = trace.metric(name)
        known = values[np.isfinite(values)]
        if len(known) and known.min() >= 0 and known.max() <= 1:
            return values
    return trace.metric(LOGGED)


def _count(trace: Trace, column: str) -> np.ndarray:
    try:
        return np.asarray(np.nan_to_num(trace.rollouts[column]))
    except NotRecorded:
        return np.zeros(len(trace.rollouts))


def _ends(trace: Trace) -> np.ndarray:
    rollouts = trace.rollouts
    return rollouts["finish"] if "finish" in rollouts else np.full(len(rollouts), None, object)


def _begun_call(text: str | None) -> bool:
    return text is not None and any(mark in text for mark in CALLS)


def _whole_call(text: str | None) -> bool:
    """Whether a call can be read: a policy that is still learning also writes broken ones."""
    if not _begun_call(text):
        return False
    between = BETWEEN_MARKS.findall(str(text))
    return bool(between and all(_is_json(call) for call in between)) or CALLS[0] not in str(text)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return text.lstrip().startswith("<function=")


def _examples(trace: Trace, rows: np.ndarray) -> list[Evidence]:
    told = "completion" in trace.rollouts
    return [
        Evidence.of(
            trace,
            row,
            f"writes {str(trace.rollouts['completion'][row])[:120]!r}" if told else "failed",
        )
        for row in rows[:3]
    ]
