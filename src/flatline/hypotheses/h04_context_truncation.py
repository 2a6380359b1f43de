"""A limit on length cuts what the model needs: documents, tool output, prompts or its own answer.

## What goes wrong
Limits that fit single turns are too small for episodes. Documents are left out or cut, so the
answer cannot be found; completions are cut before they answer and score 0; prompts lose their
beginning or are filtered out. Hard problems are longest, so they suffer most, and the reward has a
ceiling that no training lifts.

## Sign
Shares over prompts, suspected if the interval excludes the threshold:

- episodes that lost documents to the limit or ended on a full context (5 %);
- completions that a limit cut off while the reward does not rise (25 %). If groups hold both, and
  what is cut still carries a loss, only if it is certainly paid less than what ended, not counting
  parts that pay for length itself: a reward that asks for no end loses nothing, and one for brevity
  pays less for what is long, cut or not. If nothing ended, not if a quarter earns the most that is
  paid and the reward has two values, or what earns it is one text for each prompt: answers of a
  fixed length need no end;
- observations of one and the same length with some clearly shorter and none longer (half; if none
  is shorter, the tool has a fixed form);
- long prompts of exactly the greatest length (5 %, and three times as many as of any other length:
  if there are few lengths, many prompts are longest without being cut);
- prompts of exactly the greatest number of characters (half of eight or more, if the data has gold
  answers), of which three or more end in the middle of a word that prompts have whole elsewhere.

A log without rollouts has the share of cut completions alone: of the whole run, or of its last
third if that share certainly grew and the reward does not rise (10 % are enough if what ended is
certainly paid more, assuming that what was cut earns nothing).

If all completions were cut and `mask_truncated_completions` leaves them out of the loss, no token
is trained: a fault, exact over the rollouts that were seen; suspected if they are of fewer than
four prompts.

## Probe
The sign, read on one batch of the live trainer.

## Experiment
The limit in use against none, matched seeds, on the same problems: `max_prompt_length` set against
not set. Without one, the tokens of a turn against twice as many. Where a fault is planted, with the
fault against without it.

## Fix
Raise `--max-prompt-length` and `--max-new-tokens`, return fewer documents, and mask what was cut
instead of punishing it (`mask_truncated_completions`).

## Not to be confused with
H09 loss-mask-as-attention: the context is whole and hidden. H42: the limit on turns, not on length.
H39 reward-parser: whole answers that score 0.

## References
DAPO (arXiv 2503.14476), overlong filtering. verifiers cut to `max_seq_len` and kept the head. The
seeds' H04 asks for context statistics and a larger `--max-prompt-length`: these are the statistics,
and they come before any larger limit, which costs memory whether it is needed or not.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.arms import longer_turns
from flatline.hypotheses.base import ALARMS, Evidence, Finding, Hypothesis, Level, Setting
from flatline.hypotheses.column_movement import change_of, column, surely
from flatline.hypotheses.groups import mean_of, reward_rises, trains_nothing
from flatline.hypotheses.lengths import cut_off, length_parts, tells_limits
from flatline.hypotheses.logprobs import some_steps
from flatline.hypotheses.prompt_ends import cut_prompts, prompt_texts
from flatline.hypotheses.trend import thirds
from flatline.rollout.record import Author
from flatline.stats import Estimate, cluster_mean, difference_of_means
from flatline.trace import Trace

LOST = 0.05
"""Share of episodes that lose context to the limit. Healthy: 0; see docs/hypotheses.md."""
CUT = 0.25
"""Share of completions that a limit ends. Healthy lab runs: up to 0.05."""
LOSES = 0.1
"""The same where it grew, and what ended is paid more and more while the whole is not."""
MOSTLY_CUT = 0.9
"""Share cut off above which what the others are paid is hardly known."""
SAME_LENGTH = 0.5
"""Share of observations at their ceiling. Healthy: none, since longer ones exist."""
LONGER = 0.02
"""Share of observations that may be longer than a ceiling: text that encodes to more tokens."""
SHORTER = 0.02
"""Share of observations that must be clearly shorter: a limit meets lengths that vary, a tool of a
fixed form has one. Lab with observations cut at 13 tokens: 0.04."""
SLACK = 2
"""Tokens by which lengths differ that are still called the same: by encoding, or by one word."""
SHORTEST = 8
"""Tokens; shorter observations have one length because they are numbers or single words."""
LONG_PROMPT = 256
"""Tokens; shorter prompts share their greatest length by chance."""
PILED = 3.0
"""Times that a ceiling exceeds the next most common length; without one, lengths thin out there."""
VARIED = 10
"""Other lengths that must have been seen: prompts of a fixed form have few."""
FRAGMENTS = 3
"""Prompts that must end in the middle of a word."""
FEWEST = 4
"""Prompts that must have been played."""
COMPARED = 2
"""Groups with completions of both kinds, from which on it is asked whether a cut is paid less."""
OFTEN_RIGHT = 0.25
"""Share of right answers, where every completion was cut off, from which on a cut does not keep
them from being right."""
LIMIT = "max_completion_length"
"""TRL's name of the limit on a completion."""
OF_NO_LOSS = ("H24", "H26", "H27")
"""What fires where no token is trained."""

COMPLETIONS = "A length limit cuts off your completions."
LONGER_COMPLETIONS = "Raise {max_completion_length}, or make the model answer in fewer tokens."


class ContextTruncation(Hypothesis):
    id = "H04"
    name = "context-truncation"
    headline = "A length limit cuts off your prompts or completions."
    explains = ("H08", "H14", "H39", "H45")
    meaning = "What was cut cannot be used: the reward has a ceiling that no training lifts."
    fix = (
        "Raise {max_prompt_length} and {max_completion_length}, or return fewer and shorter "
        "documents."
    )
    mechanism = (
        "Documents, observations, prompts or completions are cut by a limit; in the other arm they "
        "are whole."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Which limit was met, and how often?"""
        left_out = self._left_out(trace)
        if left_out is not None:
            return left_out
        found, missing = [], None
        looks = (
            self._documents,
            self._completions,
            self._observations,
            self._prompts,
            self._cut_prompts,
        )
        for look in looks:
            try:
                found.append(look(trace))
            except NotRecorded as error:
                missing = missing or error
        known = [finding for finding in found if finding is not None]
        for level in (*ALARMS, Level.NOTE):
            told = [finding for finding in known if finding.level is level]
            if told:
                return told[0]
        if missing is not None and not known:
            raise missing
        if all(finding.level is Level.UNKNOWN for finding in known):
            return known[0] if known else self.too_little("nothing that a limit cuts was recorded")
        looked = [finding for finding in known if finding.level is not Level.UNKNOWN]
        return self.found(
            Level.OK,
            " ".join(finding.text for finding in looked),
            measured=looked[0].measured,
            expected=looked[0].expected,
            looked_at=looked[0].looked_at,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """The limit on the context against none, or the tokens of a turn against twice as many."""
        limit = config.max_prompt_length
        if limit is None:
            return longer_turns(config)
        return Setting(
            "max_prompt_length",
            None,
            control=f"context of {limit} tokens",
            treated="whole context",
        )

    def _left_out(self, trace: Trace) -> Finding | None:
        """Nothing is trained, since everything was cut and what was cut is masked."""
        level, settings = trains_nothing(trace), trace.settings
        masked, most = settings.get("mask_truncated_completions"), settings.get(LIMIT)
        if level is None or not masked or "finish" not in trace.rollouts:
            return None
        if not cut_off(trace).all():
            return None  # some ended by themselves, which is H14's
        found = self.found(
            level,
            f"All {len(trace.rollouts)} completions were cut by a limit ({LIMIT}={most}), and "
            "mask_truncated_completions=True leaves what was cut out of the loss: no token is "
            "trained.",
            measured=1.0,
            expected=f"below {CUT:.0%} cut",
            severity=1 / CUT,
            fix=f"Raise {LIMIT} until most completions end by themselves, or set "
            "mask_truncated_completions=False.",
            proven=True,
        )
        return replace(found, explains=(*self.explains, *OF_NO_LOSS))

    def _documents(self, trace: Trace) -> Finding | None:
        finish, counted = trace.rollouts["finish"], "documents_dropped" in trace.rollouts
        if not counted and not tells_limits(trace):
            return None
        lost = finish == "context"
        if counted:
            lost = lost | (np.nan_to_num(trace.rollouts["documents_dropped"]) > 0)
        return self._share(trace, lost, LOST, "of the episodes lost documents or had no room left.")

    def _completions(self, trace: Trace) -> Finding:
        if not len(trace.rollouts):
            return self._logged(trace)
        cut = cut_off(trace)
        masked = trace.settings.get("mask_truncated_completions")
        left_out = ", and mask_truncated_completions leaves those out of the loss" if masked else ""
        text = f"of the completions were cut off by a limit{left_out}."
        found = self._share(trace, cut, CUT, text, learns=reward_rises(trace))
        if found.level is not Level.SUSPECT:
            return found
        harmless = "" if masked else _costs_nothing(trace, cut)
        if harmless:
            return replace(found, level=Level.NOTE, text=f"{found.text} {harmless}", evidence=())
        return replace(found, headline=COMPLETIONS, fix=LONGER_COMPLETIONS)

    def _logged(self, trace: Trace) -> Finding:
        """Of a log, which has only the share of each step."""
        share, most = mean_of(trace.steps["truncated_share"]), CUT
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more steps are needed")
        suspect = share.low > CUT and not reward_rises(trace)
        found = thirds(trace.steps["truncated_share"], trace.steps["step"])
        ends = f": {found.early.mean():.0%} early, {found.late.mean():.0%} late" if found else ""
        text = f"{share.value:.0%} of the completions were cut off by a limit (logged{ends})."
        if found and not suspect and not reward_rises(trace):
            ended, late = paid_when_ended(trace), mean_of(found.late)
            most = LOSES if ended is not None and ended.better else CUT
            suspect = _grown(trace) and late.low > most
            share, text = (late, f"{text}{ended or ''}") if suspect else (share, text)
        return self.found(
            Level.SUSPECT if suspect else Level.OK,
            text,
            headline=COMPLETIONS,
            fix=LONGER_COMPLETIONS,
            measured=share,
            expected=f"below {most:.0%}",
            severity=share.value / most,
        )

    def _prompts(self, trace: Trace) -> Finding | None:
        length = trace.rollouts["prompt_tokens"]
        longest = np.nanmax(length)
        if longest < LONG_PROMPT:
            return None
        full = length == longest
        others = np.unique(length[np.isfinite(length) & ~full], return_counts=True)[1]
        if len(others) < VARIED or full.sum() < PILED * others.max():
            return None
        if len(np.unique(trace.groups().prompt_id[np.unique(trace.groups().index[full])])) < FEWEST:
            return None  # one long problem that was visited often
        text = f"of the prompts have exactly {longest:.0f} tokens, the greatest length."
        return self._share(trace, full, LOST, text)

    def _cut_prompts(self, trace: Trace) -> Finding | None:
        """Prompts that were cut to so many characters before a trainer saw them. Where no answer is
        asked for, the beginning of a text may be what is to be continued."""
        if "gold" not in trace.rollouts:
            return None
        cut = cut_prompts(prompt_texts(trace))
        if cut is None:
            return None
        share = cluster_mean(cut.full, np.arange(len(cut.full)))
        if share.low < SAME_LENGTH or len(cut.fragments) < FRAGMENTS:
            return None
        shown = ", ".join(repr(text) for text in cut.fragments[:3])
        return self.found(
            Level.SUSPECT,
            f"{int(cut.full.sum())} of {len(cut.full)} prompts have exactly {cut.longest} "
            f"characters, the greatest length, and {len(cut.fragments)} of them end in the middle "
            f"of a word: {shown}.",
            measured=share,
            expected="questions that end",
            severity=share.value / SAME_LENGTH,
            headline="Your prompts are cut off.",
            fix="Look at how the prompts are made, and cut none; filter out what is too long.",
        )

    def _observations(self, trace: Trace) -> Finding | None:
        tokens = trace.tokens(some_steps(trace))
        tool = tokens.author == Author.TOOL
        if not tool.any():
            return None
        goes_on = np.concatenate([[False], tool[:-1] & (tokens.position[1:] > 0)])
        number = np.cumsum(tool & ~goes_on)[tool] - 1
        length = np.bincount(number)
        row = tokens.row[tool][np.unique(number, return_index=True)[1]]
        ceiling = int(np.bincount(length).argmax())
        if ceiling < SHORTEST or (length > ceiling + SLACK).mean() > LONGER:
            return None
        if (length < ceiling - SLACK).mean() < SHORTER:
            return None
        full = length == ceiling
        share = cluster_mean(full.astype(float), trace.groups().index[tokens.rollout_rows][row])
        text = f"of {len(length)} observations have exactly {ceiling} tokens, and none many more."
        at = tokens.rollout_rows[row[np.flatnonzero(full)[0]]]
        shown = tokens.ids[tool][number == np.flatnonzero(full)[0]]
        example = Evidence.of(trace, at, f"all of an observation: {trace.decode(shown)[-200:]!r}")
        return self._judge(share, SAME_LENGTH, text, [example])

    def _share(
        self, trace: Trace, hit: np.ndarray, limit: float, text: str, *, learns: bool = False
    ) -> Finding:
        share = cluster_mean(hit.astype(float), trace.groups().index)
        where = np.flatnonzero(hit)[:3]
        evidence = [
            Evidence.of(trace, at, f"ended: {trace.rollouts['finish'][at]!s}")
            for at in (where if "finish" in trace.rollouts else where[:0])
        ]
        return self._judge(share, limit, text, evidence, learns=learns)

    def _judge(
        self,
        share: Estimate,
        limit: float,
        text: str,
        evidence: list[Evidence],
        *,
        learns: bool = False,
    ) -> Finding:
        if share.n < FEWEST:
            return self.too_little(f"{FEWEST - share.n} more prompts are needed")
        suspect = share.low > limit and not learns
        return self.found(
            Level.SUSPECT if suspect else Level.OK,
            f"{share.value:.0%} {text}",
            measured=share,
            expected=f"below {limit:.0%}",
            evidence=evidence if suspect else (),
            severity=share.value / limit,
        )


def _grown(trace: Trace) -> bool:
    """Whether more and more is cut off in the steps of a log."""
    return surely(change_of(trace.steps["truncated_share"], trace.steps["step"])) > 0


class Ended(NamedTuple):
    """What a log's completions that were not cut off are paid, if the others are paid nothing."""

    early: float
    late: float
    better: bool
    """Whether that certainly rises."""
    worse: bool
    """Whether it certainly falls."""

    def __str__(self) -> str:
        better = ": these get better, so it is the limit that costs reward" if self.better else ""
        return (
            f" If cut completions earn 0, those that ended earn {self.early:.2f} early and "
            f"{self.late:.2f} late{better}."
        )


def paid_when_ended(trace: Trace) -> Ended | None:
    """None where a log does not show it."""
    reward, cut = column(trace, "reward"), column(trace, "truncated_share")
    if not len(reward) or not len(cut):
        return None
    known = np.isfinite(reward) & np.isfinite(cut)
    if not known.any() or reward[known].min() < 0 or cut[known].max() > MOSTLY_CUT:
        return None
    ended = thirds(np.where(known, reward / (1 - cut), np.nan), trace.steps["step"])
    if ended is None or thirds(reward, trace.steps["step"]) is None:
        return None
    since, lately = (difference_of_means(old, ended.late) for old in (ended.early, ended.middle))
    return Ended(
        float(ended.early.mean()),
        float(ended.late.mean()),
        better=since.low > 0 and lately.low > 0,  # while the whole may have risen and fallen
        worse=since.high < 0,
    )


def _costs_nothing(trace: Trace, cut: np.ndarray) -> str:
    """Says so where some groups hold completions of both kinds, and those that a limit cut off are
    not certainly paid less; where too few do, if what was cut off earns the most that is paid;
    where nothing ended, if much of it is right. Else empty."""
    paid, group = _paid_besides_length(trace), trace.groups().index
    known = np.isfinite(paid)
    lost = [
        paid[here & ~cut].mean() - paid[here & cut].mean()
        for here in (known & (group == each) for each in np.unique(group))
        if (here & cut).any() and (here & ~cut).any()
    ]
    paid_cut, others = paid[known & cut], paid[known & ~cut]
    if len(paid_cut) and not len(others):
        right = paid == paid_cut.max()
        enough = right.sum() >= OFTEN_RIGHT * len(paid_cut)
        whole = enough and (len(np.unique(paid_cut)) == 2 or _one_answer_each(trace, right))
        return f"None ended, and {right.mean():.0%} earn the most that is paid." if whole else ""
    if len(lost) < COMPARED:
        differ = len(others) > 0 and len(paid_cut) > 0 and np.ptp(paid_cut) > 0
        harmless = bool(differ and paid_cut.max() >= others.max())
    else:
        harmless = not mean_of(np.array(lost)).low > 0
    return "They are not certainly paid less than those that ended." if harmless else ""


def _one_answer_each(trace: Trace, right: np.ndarray) -> bool:
    """Whether what is right is one text for each prompt, as answers of a fixed length are: texts
    that were cut somewhere differ, however well they are paid."""
    if "completion" not in trace.rollouts:
        return False
    texts, group = trace.rollouts["completion"], trace.groups().index
    several = [
        len(set(texts[right & here])) == 1
        for here in (group == each for each in np.unique(group))
        if (right & here).sum() > 1 and not right[here].all()
    ]
    return len(several) >= COMPARED and all(several)


def _paid_besides_length(trace: Trace) -> np.ndarray:
    """The reward without its parts for length: those pay a cut completion less for being long.
    Where the weights of the parts are not known, the whole."""
    paid, weights = trace.rollouts["reward"], trace.settings.get("reward_weights") or {}
    for name in length_parts(trace) & weights.keys():
        paid = paid - weights[name] * np.nan_to_num(trace.parts()[name])
    return np.asarray(paid)
