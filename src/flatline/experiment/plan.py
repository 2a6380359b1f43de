"""What an experiment will do, decided before its first run.

A plan names arms that differ in one factor, the outcome, the smallest effect that matters, the
numbers of matched seeds at which one looks, and the mechanism that must flip. A plan that could not
tell anything cannot be made.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.experiment.factor import NOT_PART_OF_AN_ARM, refuse_other_than_one_factor
from flatline.verdict import Rule

VERSION = 1
HELDOUT, REWARD, METRIC = "heldout_reward", "reward", "metric:"
"""Outcomes: gain of the held-out reward, of the training reward, or a metric by its name."""
LESS = f"{METRIC}-"
"""A metric of which less is better, such as a loss: its sign is turned wherever it is read."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Role(StrEnum):
    """What an arm is there for."""

    CONTROL = "control"
    """The setup as it is."""
    TREATED = "treated"
    """The suspected cause taken away."""
    NEGATIVE = "negative"
    """A run that cannot learn; if it seems to, the outcome is not to be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to run, on every seed: a config, or a command with values for its placeholders."""

    name: str
    """Readable, such as `KL weight 0.04`."""
    role: Role
    """What it is there for."""
    config: RunConfig | None = None
    """Run with `flatline train`; its seed and folders are set for each run."""
    command: str | None = None
    """A template such as `python train.py --beta {kl_beta} --seed {seed}`."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What the placeholders of the command stand for in this arm."""

    @property
    def digest(self) -> str:
        """The same for arms that do the same, whatever they are called: their runs are shared."""
        return _sha256(self.substance())[:12]

    def substance(self) -> dict[str, Any]:
        """All that decides what its runs do, but for the seed."""
        if self.config is None:
            return {"command": self.command, "values": dict(self.values)}
        values = self.config.to_dict().items()
        return {name: value for name, value in values if name not in NOT_PART_OF_AN_ARM}

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role.value,
            "config": self.config and self.config.to_dict(),
            "command": self.command,
            "values": dict(self.values),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        config = values["config"]
        return cls(
            name=values["name"],
            role=Role(values["role"]),
            config=config and RunConfig.from_dict(config, source=f"the arm {values['name']!r}"),
            command=values["command"],
            values=values["values"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An experiment, before it is carried out."""

    name: str
    """Of the experiment; its folder is called so."""
    hypothesis: str
    """Code of the hypothesis that is tested."""
    question: str
    """What is asked, in a sentence."""
    factor: str
    """The one thing that differs between the arms: a field of RunConfig, or a placeholder."""
    outcome: str = HELDOUT
    """`heldout_reward`, `reward`, `metric:NAME`, or `metric:-NAME` where less is better."""
    smallest_effect: float = 0.05
    """A difference of the outcome that would matter."""
    alpha: float = 0.05
    """Two-sided error rate of all hypotheses that are tested on these runs."""
    family: int = 1
    """How many those are."""
    looks: tuple[int, ...] = (3, 4, 5, 6)
    """Numbers of matched seeds at which one looks; the last is how many there are at most."""
    mechanism: str
    """What must flip between the arms, a sentence."""
    arms: tuple[Arm, ...]
    """One control, one or more treated, and what cannot learn."""
    negative_seeds: tuple[int, ...] = (0,)
    """Seeds on which the negative controls run."""
    registered: str = ""
    """When it was written to disk; empty before."""

    def __post_init__(self) -> None:
        _refuse_bad_names(self)
        _refuse_bad_roles(self)
        _ = self.rule  # refuses a criterion that cannot be kept
        _refuse_unmeasured_outcome(self)
        if not self.registered:  # else it was checked then, and reading it must not need torch
            for arm in self.treated:
                refuse_other_than_one_factor(self.factor, self.control, arm)

    @property
    def control(self) -> Arm:
        return next(arm for arm in self.arms if arm.role is Role.CONTROL)

    @property
    def treated(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if arm.role is Role.TREATED)

    @property
    def negative(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if arm.role is Role.NEGATIVE)

    @property
    def rule(self) -> Rule:
        """Each treated arm is one more effect that is tested on the same control runs."""
        return Rule(
            smallest_effect=self.smallest_effect,
            looks=self.looks,
            alpha=self.alpha,
            family=self.family * len(self.treated),
        )

    def seeds_of(self, arm: Arm) -> tuple[int, ...]:
        """The seeds it runs on at most."""
        return self.negative_seeds if arm.role is Role.NEGATIVE else tuple(range(self.looks[-1]))

    @property
    def digest(self) -> str:
        """Of everything that is registered, the time included."""
        return _sha256(self._facts())

    def to_json(self) -> dict[str, Any]:
        return {**self._facts(), "digest": self.digest}

    def _facts(self) -> dict[str, Any]:
        names = ("name", "hypothesis", "question", "factor", "outcome", "smallest_effect", "alpha")
        return {
            "version": VERSION,
            **{name: getattr(self, name) for name in names},
            "family": self.family,
            "looks": list(self.looks),
            "mechanism": self.mechanism,
            "arms": [arm.to_json() for arm in self.arms],
            "negative_seeds": list(self.negative_seeds),
            "registered": self.registered,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        known = {name: value for name, value in values.items() if name not in ("version", "digest")}
        lists = {name: tuple(known[name]) for name in ("looks", "negative_seeds")}
        arms = tuple(Arm.from_json(arm) for arm in known["arms"])
        plan = cls(**{**known, **lists, "arms": arms})
        _refuse_other_types(plan)
        return plan


def _refuse_other_types(plan: Plan) -> None:
    """Raise `TypeError` for what JSON allows and no plan has."""
    texts = ("name", "hypothesis", "question", "factor", "outcome", "mechanism", "registered")
    numbers = (*plan.looks, *plan.negative_seeds, plan.family)
    sound = all(isinstance(getattr(plan, name), str) for name in texts)
    sound &= all(type(number) is int for number in numbers)
    for arm in plan.arms:
        said = (arm.name, *arm.values, *arm.values.values())
        sound &= all(isinstance(text, str) for text in said)
        sound &= arm.command is None or isinstance(arm.command, str)
    if not sound:
        raise TypeError("a value is of another type than a plan has there")


def digest_of(values: Mapping[str, Any]) -> str:
    """What the digest of a plan.json should be."""
    return _sha256({name: value for name, value in values.items() if name != "digest"})


def _sha256(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_bad_names(plan: Plan) -> None:
    if not _NAME.fullmatch(plan.name):
        raise ConfigError(
            f"An experiment cannot be called {plan.name!r}: its folder has that name.\n"
            "Use letters, digits, dots, hyphens and underscores, e.g. `h09-mask`."
        )
    names = [arm.name for arm in plan.arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Two arms are called {twice[0]!r}, so their runs could not be distinguished.\n"
            "Give each arm a different name."
        )


def _refuse_bad_roles(plan: Plan) -> None:
    roles = [arm.role for arm in plan.arms]
    if roles.count(Role.CONTROL) != 1 or Role.TREATED not in roles:
        raise ConfigError(
            f"An experiment needs one control arm and at least one treated arm; {plan.name} has "
            f"{roles.count(Role.CONTROL)} and {roles.count(Role.TREATED)}.\n"
            "An effect is the difference between the two. With a command, give two values: "
            "`--arms kl_beta=0.04,0.0`."
        )
    for arm in plan.arms:
        if (arm.config is None) == (arm.command is None):
            raise ConfigError(
                f"The arm {arm.name!r} must have a config or a command, and not both.\n"
                "There would be nothing to run, or two things."
            )


def refuse_unknown_outcome(outcome: str) -> None:
    """Raise for what no run can come to."""
    known = outcome in (HELDOUT, REWARD) or outcome.startswith(METRIC)
    if not known or outcome in (METRIC, LESS):
        raise ConfigError(
            f"{outcome!r} is no outcome.\n"
            f"Take {HELDOUT}, {REWARD}, or {METRIC}NAME for what the trainer logs as NAME; "
            f"{LESS}NAME where less of it is better."
        )


def _refuse_unmeasured_outcome(plan: Plan) -> None:
    refuse_unknown_outcome(plan.outcome)
    for arm in plan.arms:
        if plan.outcome == HELDOUT and arm.config is not None and not arm.config.eval_limit:
            raise ConfigError(
                f"The outcome is {HELDOUT}, and the arm {arm.name!r} evaluates nothing "
                "(--eval-limit 0).\nIts runs would have no outcome.\n"
                f"Give --eval-limit a number, or take `--outcome {REWARD}`."
            )
