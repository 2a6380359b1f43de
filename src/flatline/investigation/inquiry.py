"""One hypothesis after the other: mechanism, experiment, verdict."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from flatline.errors import NotRecorded
from flatline.experiment import (
    Executor,
    Outcome,
    Plan,
    Progress,
    conduct,
    expectation,
    load_plan,
    observe,
    read_outcome,
)
from flatline.experiment.evidence import Watched, mechanism_in
from flatline.experiment.outcome import Sight
from flatline.experiment.registration import PLAN_FILE
from flatline.experiment.runs import folder_of
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import HasReplay, Hypothesis, Level
from flatline.investigation.conclusion import Conclusion, concluded, ladder_verdict, observed
from flatline.investigation.looks import checkup_of, ladder_of
from flatline.investigation.plans import name_of, plan_for, plan_for_command, refuse_in_vain
from flatline.investigation.setup import Setup
from flatline.stats import spread_of_units
from flatline.trace import Trace
from flatline.verdict import Mechanism, Presence, decide

LADDER = "H00"


class Listener(Protocol):
    """Who is told how it is going."""

    def say(self, text: str) -> None:
        """What begins now."""

    def progress(self, progress: Progress) -> None:
        """How far an arm is."""


def investigate(
    setup: Setup, hypotheses: Sequence[Hypothesis], executor: Executor, listener: Listener
) -> Iterator[Conclusion]:
    """A conclusion for each hypothesis, as soon as there is one."""
    inquiry = Inquiry(setup, executor, listener)
    for hypothesis in hypotheses:
        yield inquiry.conclude(hypothesis)


def investigate_command(
    setup: Setup,
    hypothesis: Hypothesis,
    executor: Executor,
    listener: Listener,
    *,
    command: str,
    choice: str,
) -> Conclusion:
    """The same for a command of the user; its runs are known by their traces alone."""
    plan = plan_for_command(hypothesis, setup, command, choice)
    refuse_in_vain(plan, setup)
    listener.say(f"{hypothesis.id} {hypothesis.name}: {plan.question}")
    _say_taken_up(plan, setup, listener)
    folder = setup.experiments / plan.name
    result = conduct(plan, folder, setup.runs, executor, listener.progress)
    return concluded(result, folder)


def _say_taken_up(plan: Plan, setup: Setup, listener: Listener) -> None:
    """What an investigation that broke off, or another one, has left."""
    folders = [folder_of(a, s, setup.runs) for a in plan.arms for s in plan.seeds_of(a)]
    finished = sum(read_outcome(folder) is not None for folder in folders)
    broken = sum(folder.exists() for folder in folders) - finished
    if finished or broken:
        more = f"; {broken} broke off and are looked at again" if broken else ""
        listener.say(f"{finished} of at most {len(folders)} runs have finished before{more}.")


class Inquiry:
    """An investigation of one setup while it is carried out."""

    def __init__(self, setup: Setup, executor: Executor, listener: Listener) -> None:
        self._setup, self._executor, self._listener = setup, executor, listener

    def conclude(self, hypothesis: Hypothesis) -> Conclusion:
        """Cheapest evidence first; what it leaves open is trained."""
        if hypothesis.id == LADDER:
            return self._climb(hypothesis)
        arms = hypothesis.experiment(self._setup.config)
        mechanism = self._mechanism(hypothesis)
        absent = mechanism.control is Presence.ABSENT
        if arms is None or (absent and not self._setup.train_anyway):
            return self._observed(hypothesis, mechanism)
        plan = plan_for(hypothesis, arms, self._setup, family=self._family_of(hypothesis))
        return self._experiment(hypothesis, plan)

    @cached_property
    def _control_runs(self) -> dict[int, Outcome]:
        """The setup as it is; every hypothesis looks at these runs."""
        control, runs = self._setup.control, self._setup.runs
        seeds = range(self._setup.looks[0])
        missing = [seed for seed in seeds if read_outcome(self._folder(seed)) is None]
        if missing:
            self._listener.say(f"Training the setup as it is: {len(missing)} of {len(seeds)} seeds")
        return observe(control, seeds, runs, self._executor, self._listener.progress)

    @cached_property
    def _checkup(self) -> dict[str, Sight]:
        return checkup_of(self._setup.control, self._setup.runs, self._listener.say)

    @cached_property
    def _family(self) -> int:
        """Effects that may be tested on these control runs, whether or not they ever are.

        Which these are depends on the control runs alone, so that it does not matter in which
        order, or in how many sittings, hypotheses are tested.
        """
        open_ones = [
            one
            for one in HYPOTHESES
            if one.experiment(self._setup.config) is not None
            and self._mechanism(one).control is not Presence.ABSENT
        ]
        return max(1, len(open_ones))

    def _family_of(self, hypothesis: Hypothesis) -> int:
        """As it was registered, should a newer flatline know more hypotheses by now."""
        folder = self._setup.experiments / name_of(hypothesis, self._setup)
        if (folder / PLAN_FILE).exists():
            return load_plan(folder).family
        return self._family

    def _mechanism(self, hypothesis: Hypothesis) -> Mechanism:
        """What checkup, runs and replay show of the mechanism in the setup as it is."""
        probe = self._checkup.get(hypothesis.id)
        runs = self._control_runs
        signs = [
            run.findings[hypothesis.id] for run in runs.values() if hypothesis.id in run.findings
        ]
        seen = mechanism_in(hypothesis.id, Watched(self._setup.control.name, signs, probe))
        replayed = self._replayed(hypothesis)
        if replayed and seen.control is not Presence.PRESENT:
            return replace(seen, control=Presence.ABSENT, text=f"{seen.text} {replayed}")
        return seen

    def _replayed(self, hypothesis: Hypothesis) -> str:
        """What re-scoring says, where it rules the hypothesis out in every run; else nothing."""
        if not isinstance(hypothesis, HasReplay):
            return ""
        texts = []
        for seed, run in self._control_runs.items():
            with suppress(NotRecorded):
                replay = hypothesis.replay(Trace.open(self._folder(seed) / run.trace))
                if replay.decided:
                    texts.append(replay.text)
        return texts[0] if texts and len(texts) == len(self._control_runs) else ""

    def _folder(self, seed: int) -> Path:
        return folder_of(self._setup.control, seed, self._setup.runs)

    def _experiment(self, hypothesis: Hypothesis, plan: Plan) -> Conclusion:
        refuse_in_vain(plan, self._setup)
        self._listener.say(f"{hypothesis.id} {hypothesis.name}: {plan.question}")
        self._listener.say(self._promise(plan))
        _say_taken_up(plan, self._setup, self._listener)
        folder = self._setup.experiments / plan.name
        result = conduct(
            plan,
            folder,
            self._setup.runs,
            self._executor,
            self._listener.progress,
            probes=self._probes(hypothesis, plan),
        )
        return concluded(result, folder)

    def _probes(self, hypothesis: Hypothesis, plan: Plan) -> dict[str, Sight]:
        """Where the runs of the control cannot show the mechanism, a checkup of each arm can."""
        signs = [run.findings.get(hypothesis.id) for run in self._control_runs.values()]
        probe = self._checkup.get(hypothesis.id)
        told = any(sign is not None and sign.level != Level.UNKNOWN for sign in signs)
        if probe is None or told:
            return {}
        found = {plan.control.name: probe}
        for arm in plan.treated:
            looked = checkup_of(arm, self._setup.runs, self._listener.say)
            sight = looked.get(hypothesis.id)
            if sight is not None:
                found[arm.name] = sight
        return found

    def _promise(self, plan: Plan) -> str:
        """What the plan can find out and how long it takes at most."""
        runs = self._control_runs.values()
        seconds = sum(run.seconds for run in runs) / len(runs)
        values = [found.value for run in runs if (found := run.measured(plan.outcome))]
        unseen = plan.smallest_effect
        known = len(values) > 1
        spread = spread_of_units(values, unseen=unseen) if known else unseen
        promised = expectation(
            plan,
            sd=spread * 2**0.5,  # two arms vary, each like the control
            seconds_per_run=seconds,
            jobs=self._executor.jobs,
            runs=self._setup.runs,
        )
        if known:
            return promised.text
        return f"{promised.text} (One run shows no spread between seeds; taken as {unseen:g}.)"

    def _observed(self, hypothesis: Hypothesis, mechanism: Mechanism) -> Conclusion:
        """Decided by the control runs alone, or not to be decided with this setup."""
        self._listener.say(f"{hypothesis.id} {hypothesis.name}: nothing needs to be trained")
        verdict = decide(hypothesis.id, [], self._setup.rule, mechanism)
        if mechanism.control is not Presence.ABSENT:
            verdict = replace(
                verdict,
                reason=f"The mechanism is {mechanism.control} in the control runs, and no setting "
                "of this setup takes it away, so there is nothing to compare.",
                would_change="An experiment with your own command: `--command` and `--arms`.",
            )
        return observed(
            hypothesis, self._setup, verdict, asked=hypothesis.mechanism, runs=self._control_runs
        )

    def _climb(self, hypothesis: Hypothesis) -> Conclusion:
        """The ladder has a rule of its own: the first rung that fails is the answer."""
        from flatline.diagnosis.ladder import climb_ladder

        found = ladder_of(
            self._setup.control,
            self._setup.runs,
            lambda: climb_ladder(
                self._setup.config,
                on_rung=lambda climb: self._listener.say(f"Ladder: {climb.rung.part} is done"),
            ),
        )
        verdict = ladder_verdict(found, self._setup)
        return observed(
            hypothesis, self._setup, verdict, asked="A rung of the ladder fails.", runs={}
        )
