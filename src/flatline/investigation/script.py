"""Proof on the user's own run: a script as it is against the same with the suspected cause taken
away by a remedy, on matched seeds.

    RUNS/<digest of the arm>-pilot-s<seed>.json   what a first look at an arm found

Before anything is trained a pilot of each arm builds the trainer, looks at it, and takes two steps:
what it costs, whether the seed reaches the script, whether both arms run, whether the remedy does
anything. What these settle is not trained.
"""

import hashlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flatline.errors import ConfigError
from flatline.experiment import Arm, Executor, Local, Plan, Role, conduct
from flatline.experiment.commands import rendered
from flatline.experiment.evidence import Watched, mechanism_in
from flatline.experiment.plan import HELDOUT
from flatline.experiment.runs import FLATLINE
from flatline.files import json_in
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Hypothesis
from flatline.investigation.conclusion import Conclusion, concluded, observed
from flatline.investigation.inquiry import LADDER, Listener
from flatline.investigation.looks import kept, sights_of
from flatline.investigation.mending import change_to_make, with_arguments
from flatline.investigation.plans import name_of, refuse_in_vain
from flatline.investigation.setup import AS_IT_IS, Setup
from flatline.remedies import REMEDIES, WITHOUT
from flatline.verdict import Mechanism, Presence, Ruling, Verdict, decide

REMEDY, SCRIPT = "remedy", "script"
NONE = "none"
REFUSED = "refused"
"""In a pilot: why the remedy cannot be put into this trainer."""
TAIL = 12
"""Lines of a pilot's output that a failure shows."""
SAME = 1e-6
"""1 minus the cosine of two gradients that are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the user would type, and how it is started."""

    path: Path
    arguments: tuple[str, ...] = ()
    launch: str = ""
    """What stands in front: `accelerate launch --num_processes 2`; empty for one process."""
    steps: int | None = None
    """Optimizer steps after which a run ends; all that the script asks for where absent."""

    def arm(self, role: Role, remedy: str, outcome: str, measured_with: str) -> Arm:
        """The script with a remedy, or `none`."""
        start = [*shlex.split(self.launch), "-m", "flatline"] if self.launch else [*FLATLINE]
        held_out = ["--evaluate", "--measured-with", measured_with] if outcome == HELDOUT else []
        ends = ["--steps", str(self.steps)] if self.steps else []
        words = [_plain(word) for word in (*start, "run", *held_out, *ends)]
        words += ["--remedy", "{remedy}", "--seed", "{seed}", "--record", "{run_dir}"]
        words += ["--output", "{run_dir}/outputs"]
        words += [_plain(word) for word in with_arguments(self.path, self.arguments)]
        return Arm(
            name=AS_IT_IS if remedy == NONE else f"with the remedy for {remedy}",
            role=role,
            command=shlex.join(words),
            # A script that was changed is another experiment.
            values={REMEDY: remedy, SCRIPT: self._digest()},
        )

    def _digest(self) -> str:
        try:
            return hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be read: {error.strerror}.\n"
                "Type the script as you would after `python`: "
                "`flatline investigate H09 --script train.py -- --its-own-flags`."
            ) from error


def _plain(word: str) -> str:
    """Braces of the user's are no placeholders."""
    return word.replace("{", "{{").replace("}", "}}")


def investigate_script(
    setup: Setup,
    script: Script,
    hypotheses: Sequence[Hypothesis],
    executor: Executor,
    listener: Listener,
    *,
    budget: float | None = None,
) -> Iterator[Conclusion]:
    """A conclusion for each hypothesis, as soon as there is one. After `budget` seconds no further
    run is begun, and the verdict is what the evidence says by then."""
    until = None if budget is None else time.monotonic() + budget
    inquiry = _Inquiry(setup, script, executor, listener, until)
    for hypothesis in hypotheses:
        if hypothesis.id != LADDER:
            yield inquiry.conclude(hypothesis)


class _Inquiry:
    """An investigation of one script while it is carried out."""

    def __init__(
        self,
        setup: Setup,
        script: Script,
        executor: Executor,
        listener: Listener,
        until: float | None,
    ) -> None:
        self._setup, self._script, self._executor = setup, script, executor
        self._listener, self._until = listener, until

    def conclude(self, hypothesis: Hypothesis) -> Conclusion:
        """Cheapest evidence first; what it leaves open is trained."""
        mechanism = self._mechanism(hypothesis)
        absent = mechanism.control is Presence.ABSENT
        if hypothesis.id not in REMEDIES or (absent and not self._setup.train_anyway):
            return self._observed(hypothesis, mechanism)
        plan = self._plan(hypothesis)
        pilot = self._pilot(plan.treated[0], seed=1)
        if REFUSED in pilot:
            return self._refused(hypothesis, mechanism, pilot[REFUSED])
        self._refuse_ignored_seed(pilot)
        settled = self._still_there(hypothesis, mechanism, pilot) or self._changes_nothing(
            hypothesis, mechanism, pilot
        )
        if settled and not self._setup.train_anyway:
            return self._concluded(hypothesis, settled)
        return self._experiment(hypothesis, plan, pilot)

    # -- looking

    @cached_property
    def _control(self) -> dict[str, Any]:
        """The pilot of the script as it is."""
        found = self._pilot(self._arm(Role.CONTROL, NONE, NONE), seed=0)
        self._refuse_untrained(found)
        if found["processes"] > 1:
            self._executor = self._executor.of_processes(found["processes"])
        return found

    def _arm(self, role: Role, remedy: str, measured_with: str) -> Arm:
        return self._script.arm(role, remedy, self._setup.outcome, measured_with)

    def _pilot(self, arm: Arm, *, seed: int) -> dict[str, Any]:
        path = (self._setup.runs / f"{arm.digest}-pilot-s{seed}.json").resolve()

        def look() -> dict[str, Any]:
            self._listener.say(f"A first look at the script {arm.name}: a checkup and two steps")
            # What a run will have of the machine; a launcher is shown all of it once.
            share = {} if self._script.launch else Local(1).environment(0)
            return _piloted(arm, seed, path, share)

        return kept(path, look)

    def _mechanism(self, hypothesis: Hypothesis) -> Mechanism:
        sight = sights_of(self._control["findings"]).get(hypothesis.id)
        return mechanism_in(hypothesis.id, Watched(AS_IT_IS, [], sight))

    @cached_property
    def _family(self) -> int:
        """Effects that may be tested on one set of control runs, whether or not they ever are."""
        return max(
            1,
            sum(
                one.id in REMEDIES and self._mechanism(one).control is not Presence.ABSENT
                for one in HYPOTHESES
            ),
        )

    def _refuse_untrained(self, found: Mapping[str, Any]) -> None:
        if not found["drawn"]:
            raise ConfigError(
                f"{self._script.path} builds a trainer that takes no step: nothing was sampled.\n"
                "There would be nothing to compare.\nGive it more steps (`max_steps`, "
                "`num_train_epochs`) or rows, or a folder without a checkpoint that it goes on "
                "from."
            )

    def _refuse_ignored_seed(self, treated: Mapping[str, Any]) -> None:
        """The two pilots have other seeds: before any update only these can tell them apart."""
        if treated["drawn"] == self._control["drawn"]:
            raise ConfigError(
                f"{self._script.path} draws the same completions of the same prompts on seeds 0 "
                "and 1: it ignores the seed that it is given.\n"
                "All seeds would be one run, and no interval could be had of it.\n"
                "Take away what sets a seed after the config object is made, such as "
                "`set_seed(42)` or `generator=`."
            )

    def _refused(self, hypothesis: Hypothesis, mechanism: Mechanism, why: str) -> Conclusion:
        """What cannot be put into this script is not tested, and nothing else waits for it."""
        verdict = replace(
            decide(hypothesis.id, [], self._setup.rule, mechanism),
            reason=f"The remedy for {hypothesis.id} cannot be put into this script: {why}",
            would_change="The script with that changed, compared by `--command` and `--arms`.",
        )
        return self._concluded(hypothesis, verdict)

    def _still_there(
        self, hypothesis: Hypothesis, mechanism: Mechanism, pilot: Mapping[str, Any]
    ) -> Verdict | None:
        """What the remedy does not take away is not tested by it."""
        sight = sights_of(pilot["findings"]).get(hypothesis.id)
        treated = Watched(REMEDY, [], sight)
        if {mechanism.control, treated.presence} != {Presence.PRESENT}:
            return None
        return replace(
            decide(hypothesis.id, [], self._setup.rule, mechanism),
            settled=True,
            reason=f"The remedy does not take {hypothesis.id} away: {treated.text}",
            would_change=f"Fix the cause by hand. {hypothesis.fix}",
        )

    def _changes_nothing(
        self, hypothesis: Hypothesis, mechanism: Mechanism, pilot: Mapping[str, Any]
    ) -> Verdict | None:
        """A verdict without any training, where the remedied step is the step as it is."""
        proof, remedy = pilot["gradient"], REMEDIES[hypothesis.id]
        if mechanism.control is Presence.PRESENT or remedy.beyond_gradient or not proof:
            return None
        if any(1 - one["cosine"] > SAME or abs(one["length"] - 1) > 1e-3 for one in proof):
            return None
        return replace(
            decide(hypothesis.id, [], self._setup.rule, mechanism),
            ruling=Ruling.INVALIDATED,
            settled=True,
            reason=f"Taking {hypothesis.id} away leaves the step as it is: on {len(proof)} batches "
            "the gradient with the remedy is the gradient without it.",
            would_change="A batch on which the two differ: a longer pilot, or other data.",
        )

    # -- training

    def _plan(self, hypothesis: Hypothesis) -> Plan:
        code, remedy = hypothesis.id, REMEDIES[hypothesis.id]
        measured_with = code if remedy.of_reward else NONE
        setup = self._setup
        return Plan(
            name=name_of(hypothesis, setup),
            hypothesis=code,
            question=f"Does the reward improve where this run {remedy.what}?",
            factor=REMEDY,
            outcome=setup.outcome,
            smallest_effect=setup.smallest_effect,
            alpha=setup.alpha,
            family=self._family,
            looks=setup.looks,
            mechanism=hypothesis.mechanism or f"What {code} sees is gone.",
            arms=(
                self._arm(Role.CONTROL, NONE, measured_with),
                self._arm(Role.TREATED, code, measured_with),
            ),
        )

    def _experiment(
        self, hypothesis: Hypothesis, plan: Plan, pilot: Mapping[str, Any]
    ) -> Conclusion:
        refuse_in_vain(plan, self._setup)
        self._listener.say(f"{hypothesis.id} {hypothesis.name}: {plan.question}")
        cost = Cost(plan, self._control, self._executor.jobs)
        self._listener.say(cost.text)
        self._listener.say(gradient_text(pilot["gradient"]))
        looks = {plan.control.name: self._control, plan.treated[0].name: pilot}
        found = {name: sights_of(one["findings"]) for name, one in looks.items()}
        result = conduct(
            plan,
            self._setup.experiments / plan.name,
            self._setup.runs,
            self._executor,
            self._listener.progress,
            probes={n: s[hypothesis.id] for n, s in found.items() if hypothesis.id in s},
            go_on=lambda count: self._affords(cost, count),
        )
        conclusion = concluded(result, self._setup.experiments / plan.name)
        if conclusion.verdict.ruling is not Ruling.VALIDATED:
            return conclusion
        return replace(conclusion, change=self._change(hypothesis.id))

    def _change(self, code: str) -> str:
        where = [one["where"] for one in self._control["findings"] if one["hypothesis"] == code]
        script = self._script
        return change_to_make(code, where[0] if where else [], script.path, script.arguments)

    def _affords(self, cost: "Cost", seeds: int) -> bool:
        if self._until is None or time.monotonic() + cost.seconds_to(seeds) <= self._until:
            return True
        more = duration(cost.seconds_to(seeds))
        self._listener.say(
            f"The budget ends here: {seeds} matched seeds would take {more} more. The verdict is "
            "what the evidence says so far; the same command goes on from it."
        )
        return False

    def _observed(self, hypothesis: Hypothesis, mechanism: Mechanism) -> Conclusion:
        """Decided by the checkup alone, or not to be decided here."""
        verdict = decide(hypothesis.id, [], self._setup.rule, mechanism)
        if mechanism.control is not Presence.ABSENT:
            verdict = replace(
                verdict,
                reason=f"The mechanism is {mechanism.control} in the script as it is, and no "
                f"remedy takes it away: {WITHOUT[hypothesis.id]}",
                would_change="The script with that changed, compared by `--command` and `--arms`.",
            )
        return self._concluded(hypothesis, verdict)

    def _concluded(self, hypothesis: Hypothesis, verdict: Verdict) -> Conclusion:
        self._listener.say(f"{hypothesis.id} {hypothesis.name}: nothing needs to be trained")
        setup = replace(self._setup, as_it_is=self._arm(Role.CONTROL, NONE, NONE))
        return observed(hypothesis, setup, verdict, asked=hypothesis.mechanism, runs={})


class Cost:
    """What an experiment takes, from what a pilot measured."""

    def __init__(self, plan: Plan, pilot: Mapping[str, Any], jobs: int) -> None:
        self._plan, self._pilot, self._jobs = plan, pilot, jobs
        steps = pilot["steps"]
        self.run: float = (
            pilot["startup_seconds"]
            + steps * (pilot["seconds_per_step"] or 0.0)
            + 2 * pilot["evaluation_seconds"]
        )

    def seconds_to(self, seeds: int) -> float:
        """For all runs from the look before up to this one."""
        before = max((look for look in self._plan.looks if look < seeds), default=0)
        runs = (seeds - before) * (1 + len(self._plan.treated))
        return -(-runs // self._jobs) * self.run

    @property
    def text(self) -> str:
        """Said before the first run."""
        pilot, looks = self._pilot, self._plan.looks
        least = self.seconds_to(looks[0])
        most = sum(self.seconds_to(look) for look in looks)
        told = {
            HELDOUT: "what the script's own reward functions pay for "
            f"{pilot['held_out_rows']} held-out rows, before and after, drawn with the same random "
            "numbers in every run"
        }.get(self._plan.outcome, self._plan.outcome)
        return (
            f"A step takes {pilot['seconds_per_step']:.2g} s and a run of {pilot['steps']} steps "
            f"{duration(self.run)}. {looks[0]} to {looks[-1]} matched seeds of two arms, "
            f"{self._jobs} at once: {duration(least)} to {duration(most)}. The outcome: {told}."
        )


def gradient_text(proof: Sequence[Mapping[str, float]]) -> str:
    """What the short proof says and what it is worth, in a sentence or two."""
    if not proof:
        return "The gradients of both arms could not be compared on one batch."
    shown = ", ".join(f"cosine {one['cosine']:.3f}, length {one['length']:.2f}" for one in proof)
    return (
        f"The remedied step against the step as it is, on the same batches: {shown}. That says "
        "whether the remedy changes what is learnt from a batch; whether that helps, runs say."
    )


def duration(seconds: float) -> str:
    """For a person."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _piloted(arm: Arm, seed: int, path: Path, share: Mapping[str, str]) -> dict[str, Any]:
    assert arm.command is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.with_suffix("")
    words = list(rendered(arm.command, {**arm.values, "seed": seed, "run_dir": folder}))
    at = words.index("run") + 1
    made = path.with_suffix(".half")
    with suppress(FileNotFoundError):
        made.unlink()
    command = [*words[:at], "--pilot", str(made), *words[at:]]
    environment = {**os.environ, **share}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    try:
        if done.returncode == 0:
            return dict(json_in(made))
    except (OSError, ValueError):
        pass
    lines = [line[-300:] for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    end = "\n".join(f"  {line}" for line in lines[-TAIL:]) or "  (it printed nothing)"
    raise ConfigError(
        f"The script {arm.name} ended with exit code {done.returncode} before its third step:\n"
        f"{end}\nNothing was trained yet. Put that right and type the same again; alone it is run "
        f"by `{shlex.join(words)}`.\nWhere it needs several processes: "
        '`--launch "accelerate launch --num_processes 2"`.'
    )
