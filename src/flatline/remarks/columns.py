"""The columns of a log, the ones that matter first, and what a sentence calls them."""

import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from flatline.hypotheses.column_movement import column, metric
from flatline.hypotheses.held_out import is_evaluation, is_score
from flatline.hypotheses.kl_unit import of_answers
from flatline.hypotheses.part_columns import Parts, parts_of
from flatline.remarks.shape import Noise, Shape, likeness
from flatline.trace import Trace, memo
from flatline.trace.importers.resolve import plain


class Words(NamedTuple):
    """How a column is spoken of."""

    subject: str
    rank: int
    """The smaller, the earlier it is told."""
    unit: str = ""
    share: bool = False
    never: str = ""
    """What to say where it is 0 in every row."""
    zero: str = ""
    """What a row in which it is 0 means, where that is worth telling."""
    falls: str = ""
    """What it means that it falls."""
    below: str = ""
    """What it means that it is below 0 in most rows, where that is counted."""
    least: float = 0.12
    """Relative change that is told."""


POLICY = ("kl", "entropy", "completion_length")
"""What shows whether a policy moves."""
KNOWN: dict[str, Words] = {
    "reward": Words("the reward", 0, least=0.05),
    "heldout_reward": Words("the held-out reward", 1, least=0.05),
    "zero_std_share": Words(
        "the share of groups with equal rewards",
        3,
        share=True,
        never="rewards differ in every group",
    ),
    "truncated_share": Words(
        "the share of completions cut off", 3, share=True, never="no completion is cut off"
    ),
    "grad_norm": Words("the gradient norm", 4, zero="nothing is learnt there", least=0.25),
    "kl": Words("the KL", 4, " nat per token", falls="back towards the reference", least=0.3),
    "entropy": Words("the entropy", 4, " nat per token", least=0.15),
    "completion_length": Words("the length of completions", 4, " tokens"),
    "clip_share": Words(
        "the share of clipped tokens", 5, share=True, never="no ratio is clipped", least=0.3
    ),
    "logprob_gap": Words("the gap between sampler and trainer", 5, " nat", least=0.3),
    "learning_rate": Words("the learning rate", 5),
    "loss": Words("the loss", 8, least=0.3),
    "seconds": Words("the time of a step", 9, " s", least=0.3),
    "seconds_sampling": Words("the time of sampling", 9, " s", least=0.3),
    "seconds_scoring": Words("the time of scoring", 9, " s", least=0.3),
    "seconds_backward": Words("the time of the update", 9, " s", least=0.3),
}
SPREAD = Words("the spread of the rewards", 4, zero="all rewards are equal there")
_SPREAD = re.compile(r"(.*/)?((reward|score)s?[/_]std(ev)?|std_reward|reward_mean_std)")
_OF_A_PART = re.compile(r" ?/ ?std$")
_EXPLAINED = re.compile(r"explained_var")
_EXTREME = re.compile(r"(.*/)?(scores?|rewards?)[/_](min|max)")
_MINOR = re.compile(
    r"(^|[/_])(min|max|std|low|high|p\d\d|median|num|count|total|terminated|time|timing|perf|"
    r"throughput|memory|mem|gib|gb|mib|mfu|flos|runtime|wall|elapsed|gpu|cpu|samples|tokens|steps?|lora|"
    r"seconds|system|version|seqlen|timestamp)([/_@]|$)|per_s"
)
"""Names of what is beside the matter: extremes, speed, bookkeeping."""
_MATTERS = re.compile(r"turn|tool|stale|fail|error|solve|group|prompt")
_SETTING = re.compile(
    r"(^|[/_])(lr|learning_rate|coef|coeff|beta|temperature|weight|alpha)($|[/_])"
)
HELD_OUT, PARTS, SETTINGS, OTHER, MINOR = 1, 2, 5, 6, 9
"""Ranks of columns; what is known has its own."""
MANY = 200
"""Columns that are looked at, the most important ones."""
ROUNDING = 1e-6
"""A spread of rewards below it is none."""
CLOCKS = ((1e9, 4e9), (1e12, 4e12))
"""Seconds and milliseconds since 1970, of the years that a log may be of."""
PERCENT = 0.01
"""Share below which a percentage has digits."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, its shape, and what it is called."""

    name: str
    """Our name for it where we have one, else the log's."""
    words: Words
    values: np.ndarray
    """NaN where a row lacks it."""
    shape: Shape
    part: bool = False
    """A part of the reward by the trainer's own word."""

    @property
    def subject(self) -> str:
        return self.words.subject

    @property
    def ours(self) -> bool:
        return not self.subject.startswith("`")

    @property
    def setting(self) -> bool:
        """Whether somebody set it, and changed it on the way. Passes over the data count up."""
        return bool(self.shape.levels) and not plain(self.name).endswith("epoch")

    @property
    def minor(self) -> bool:
        return self.words.rank >= MINOR

    def number(self, value: float) -> str:
        """A value of it, with its unit."""
        return percent(value) if self.words.share else f"{short(value)}{self.words.unit}"

    def bare(self, value: float) -> str:
        """The same without it."""
        return percent(value) if self.words.share else short(value)


def percent(value: float) -> str:
    return f"{value:.0%}" if value >= PERCENT or value == 0 else f"{100 * value:.2g}%"


def short(value: float) -> str:
    """Three digits; thousands as one writes them."""
    value += 0.0  # no -0
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.0f}" if 100 <= abs(value) < 1000 else f"{value:.3g}"


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def sentence(clauses: list[str]) -> str:
    """Clauses, as one sentence."""
    told = "; ".join(clauses)
    return f"{told[:1].upper()}{told[1:]}."


def yours(one: Column) -> str:
    """What the first sentence calls a column."""
    return one.subject.replace("the ", "your ", 1) if one.ours else one.subject


def once(columns: list[Column]) -> list[Column]:
    """Without those that repeat another one, number by number: that is told for itself."""
    kept: dict[bytes, Column] = {}
    for one in columns:
        kept.setdefault(one.name.encode() if one.shape.constant else one.values.tobytes(), one)
    return list(kept.values())


@memo.once
def columns_of(trace: Trace) -> list[Column]:
    """All columns that say something of their own, the ones that matter first."""
    named = _named(trace)
    if len(named) > MANY:
        first = sorted(named, key=lambda name: (named[name][0].rank, _order(named[name][1])))
        named = {name: named[name] for name in first[:MANY]}
    step = trace.steps["step"]
    alike = likeness([values for _, values, _ in named.values()])
    minor = sum(words.rank >= MINOR for words, *_ in named.values())
    noise = {True: Noise(minor, alike), False: Noise(len(named) - minor, alike)}
    made = [
        Column(name, words, values, Shape(values, step, noise[words.rank >= MINOR]), part)
        for name, (words, values, part) in named.items()
    ]
    # No name decides on the order: what is renamed is told the same.
    return sorted(made, key=lambda one: (one.words.rank, _order(one.values)))


def _order(values: np.ndarray) -> tuple[float, ...]:
    return tuple(np.where(np.isnan(values), -math.inf, values).tolist())


def _named(trace: Trace) -> dict[str, tuple[Words, np.ndarray, bool]]:
    """Name -> its words, its values, and whether it is a part of the reward."""
    filled = trace.run.get("aliases") or {}
    found: dict[str, tuple[Words, np.ndarray, bool]] = {}
    for name, words in KNOWN.items():
        values = column(trace, name)
        if len(values) and np.isfinite(values).any():
            whole = name == "kl" and of_answers(trace)
            found[name] = (words._replace(unit=" nat") if whole else words, values, False)
    own = {*filled.values(), *filled, *KNOWN}
    parts, strange = _functions(trace), frozenset(trace.run.get("unrecognised") or ())
    for name in trace.metric_names:
        values = metric(trace, name)
        if name not in own and np.isfinite(values).any() and not _is_clock(values):
            words = _words(values, name, parts, strange=name in strange)
            values = np.where(np.abs(values) < ROUNDING, 0.0, values) if words is SPREAD else values
            found[name] = (words, values, name in parts)
    return found


def _is_clock(values: np.ndarray) -> bool:
    """Whether it is the time of day in seconds or milliseconds since 1970, under any name."""
    known = values[np.isfinite(values)]
    since = [low <= known[0] and known[-1] <= high for low, high in CLOCKS]
    return any(since) and bool((np.diff(known) >= 0).all())


def beside_the_matter(name: str) -> bool:
    """Whether a name says that a column is bookkeeping."""
    text = re.sub(r"[^a-z0-9]+", "_", plain(name))
    return _MINOR.search(text) is not None and not _MATTERS.search(text)


def functions_of(trace: Trace) -> Parts | None:
    """The parts of the reward, without their spreads, which a table has beside them."""
    found = parts_of(trace)
    if found is None:
        return None
    kept = {name: v for name, v in found.columns.items() if not _OF_A_PART.search(name)}
    return replace(found, columns=kept) if kept else None


def _functions(trace: Trace) -> dict[str, str]:
    """The log's name of a reward function -> what the user calls it."""
    found = functions_of(trace) if "reward" in trace.steps else None
    if found is None or not found.named:
        return {}
    return {
        name: short
        for name in trace.metric_names
        for short in [re.sub(r"^.*?rewards ?/ ?| ?/ ?mean$", "", name)]
        if short in found.columns and "rewards/" in plain(name) and plain(name)[:4] != "eval"
    }


def _words(values: np.ndarray, name: str, parts: dict[str, str], *, strange: bool) -> Words:
    text = plain(name)
    subject = f"`{parts.get(name, name)}`"
    if name in parts:
        return Words(subject, PARTS, least=0.05)
    scored = is_evaluation(name) and is_score(name, values)
    if strange and not scored:
        return Words(subject, OTHER)  # its name may be anything
    if _SPREAD.fullmatch(text):
        return SPREAD
    if text.endswith("/std") and (mean := f"{name[:-3]}mean") in parts:
        return Words(f"the spread of `{parts[mean]}`", MINOR)
    if _EXPLAINED.search(text):
        return Words(subject, OTHER, below=": the value head explains nothing there")
    if _EXTREME.fullmatch(text):
        return Words(subject, OTHER)
    if is_evaluation(name):
        return Words(subject, HELD_OUT if scored and not _MINOR.search(text) else MINOR)
    if (_MINOR.search(text) and not _MATTERS.search(text)) or text == "epoch":
        return Words(subject, MINOR, least=0.3)
    return Words(subject, SETTINGS if _SETTING.search(text) else OTHER)
