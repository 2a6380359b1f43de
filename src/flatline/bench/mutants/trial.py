"""One mutant: does it stop, change nothing, or change the training? What do the looks say?

Everything runs in the process that calls it, which is thrown away.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatline.bench.mutants.changed_text import show_changed
from flatline.bench.mutants.difference import Effect, difference
from flatline.bench.mutants.heard import (
    Heard,
    asked_of_loop,
    hearing_optimizers,
    kept,
    said,
    train_for,
)
from flatline.bench.mutants.planting import Ground, lines_executed
from flatline.bench.mutants.script import Reached, run_until_train
from flatline.bench.mutants.sites import Mutation
from flatline.bench.mutants.whole import scored, trained_whole
from flatline.diagnosis.report import Report, diagnose
from flatline.text import shortened
from flatline.trace import Trace
from flatline.trace.folder import RUN_FILE

Found = dict[str, Any]
Act = Callable[[Any], Found]
TOLD = 200
"""Characters of an alarm that are kept."""
PLACES = 10
"""Lines of code that an alarm shows, of which so many are kept."""
KIND, TRAINER, LOOP = "kind", "trainer", "loop"
"""Who steps in a script: a trainer, or the script itself."""
LATER = {TRAINER: 40, LOOP: 10}
"""Steps after which a change is looked at again that showed nothing in the first, and was alarmed
about; a trainer may end before, as it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A script and how far it is followed."""

    script: Ground
    grounds: Mapping[str, Ground]
    """What is changed, by the name of the module; the script's own is its path."""
    arguments: tuple[str, ...] = ()
    steps: int = 2


def reference(setup: Setup, numbers: Path) -> Found:
    """What a few steps do without a change; their numbers go into a file."""
    begun = time.perf_counter()
    found = _few_steps(setup, None, lambda heard: kept(heard, numbers))
    return {**found, "waited": time.perf_counter() - begun}


def compared(setup: Setup, mutation: Mutation, without: Heard) -> Found:
    """What a few steps with the change do, beside those without."""
    own = setup.grounds[mutation.module].file == setup.script.file

    def told(heard: Heard) -> Found:
        return difference(without, heard, asks=own).to_json()

    found = _few_steps(setup, mutation, told)
    return {"effect": Effect.STOPS.value, **found} if "error" in found else found


def compared_later(setup: Setup, mutation: Mutation, steps: int) -> Found:
    """The same after some more steps. Both runs are made here: hardly any change needs it."""
    from transformers import set_seed

    longer, heard = replace(setup, steps=steps), list[Heard]()

    def hear(one: Heard) -> Found:
        heard.append(one)
        return {}

    for change in (None, mutation):
        set_seed(0)
        found = _few_steps(longer, change, hear)
        if "error" in found:
            return {"effect": Effect.STOPS.value, **found}
    return difference(*heard).to_json()


def executed(setup: Setup) -> Found:
    """The lines of each module that building the trainer and its steps run."""
    files = {module: ground.file for module, ground in setup.grounds.items()}
    with lines_executed(list(files.values())) as seen:
        found = _few_steps(setup, None, lambda heard: {})
    return {**found, "lines": {module: sorted(seen[file]) for module, file in files.items()}}


def checked(setup: Setup, mutation: Mutation | None) -> Found:
    """What the checkup says before the first step; of a loop, what it asks flatline itself."""
    asked: list[Report] = []

    def show() -> None:
        if mutation is not None:
            ground = setup.grounds[mutation.module]
            show_changed(ground.file, ground.sites.text(mutation))

    def look(trainer: Any) -> Found:
        import flatline

        show()
        return _told(flatline.checkup(trainer))

    def heard(check: Any, trainer: Any) -> Report:
        show()
        report: Report = check(trainer)
        asked.append(report)
        return report

    def run() -> Found:
        return _at_train(setup, mutation, look) or _asked_itself(asked, Path.cwd())

    with _checkups_of_the_script(heard):
        return _guarded(run)


def seeded(setup: Setup, mutation: Mutation | None, seed: int, trace: Path | None) -> Found:
    """The whole training with another seed, and how good the policy is that comes out.

    It is scored by the script without the change: a mutant does not judge itself.
    """
    weights: dict[str, Any] = {}

    def train(trainer: Any) -> Found:
        return trained_whole(trainer, seed, trace, weights)

    def score(trainer: Any) -> Found:
        return scored(trainer, weights)

    def both() -> Found:
        found = _at_train(setup, mutation, train)
        diagnosis = {"diagnosis": _told(diagnose(Trace.open(trace)))} if trace else {}
        if mutation is not None:
            setup.grounds[mutation.module].clear()
        return {**found, **diagnosis, **_at_train(setup, None, score)}

    return _guarded(both)


def _few_steps(setup: Setup, mutation: Mutation | None, hear: Callable[[Heard], Found]) -> Found:
    """A trainer's steps, or those of whatever optimizer the script steps itself."""
    found: Found = {}

    asked: list[Any] = []

    def loop_ends(heard: Heard) -> None:
        told = hear(heard._replace(asked=said(asked)))
        if told.get("stage") == "gradient":  # nothing was heard of the stages before it
            del told["stage"]
        found.update({KIND: LOOP, **told})
        raise Reached

    def train(trainer: Any) -> Found:
        loop.close()
        return {KIND: TRAINER, **hear(train_for(trainer, setup.steps))}

    def run() -> Found:
        return _at_train(setup, mutation, train) or found or _nothing_trained(setup)

    def nothing(check: Any, trainer: Any) -> Report:
        """A checkup trains nothing; a loop says in it what it asks for."""
        asked.append(asked_of_loop(trainer))
        return Report(subject="", findings=(), trend=None)

    with ExitStack() as loop, _checkups_of_the_script(nothing):
        loop.enter_context(hearing_optimizers(setup.steps, loop_ends))
        return _guarded(run)


def _nothing_trained(setup: Setup) -> Found:
    return {
        "error": f"{setup.script.file.name} ended and had neither called `train()` of a trainer "
        f"nor made {setup.steps} steps of an optimizer"
    }


def _told(report: Report) -> Found:
    """Alarms, most likely cause first."""
    told = [
        {
            "hypothesis": one.hypothesis,
            "text": shortened(one.text, limit=TOLD),
            "where": [place.to_json() for place in one.where[:PLACES]],
        }
        for one in report.alarms
    ]
    return {"alarms": told, "tested": report.tested}


def _asked_itself(checkups: Sequence[Report], folder: Path) -> Found:
    """What a loop's own checkup says, then the diagnosis of what its own watch recorded."""
    traces = [file.parent for file in folder.rglob(RUN_FILE)]
    reports = [*checkups, *(diagnose(Trace.open(trace)) for trace in traces[:1])]
    if not reports:
        return {"error": "no trainer to check up, and the script asks flatline nothing itself"}
    looks = [_told(report) for report in reports]
    alarms = {one["hypothesis"]: one for look in reversed(looks) for one in look["alarms"]}
    first = [one["hypothesis"] for look in looks for one in look["alarms"]]
    return {
        "alarms": [alarms[code] for code in dict.fromkeys(first)],
        "tested": max(look["tested"] for look in looks),
    }


@contextmanager
def _checkups_of_the_script(answer: Callable[[Any, Any], Report]) -> Iterator[None]:
    """`flatline.checkup`, where the script calls it, is answered by us."""
    import flatline

    check = flatline.checkup
    flatline.checkup = lambda trainer, **asked: answer(check, trainer)
    try:
        yield
    finally:
        flatline.checkup = check


def _guarded(work: Callable[[], Found]) -> Found:
    """What it came to, in how many seconds of a core. An exception of the mutant is an answer."""
    begun = time.process_time()
    try:
        found = work()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        found = {"error": f"{type(error).__name__}: {error}"[:300], "at": where}
    return {**found, "seconds": round(time.process_time() - begun, 2)}


def _at_train(setup: Setup, mutation: Mutation | None, act: Act) -> Found:
    """What `act` finds in place of `train()`; nothing where the script has no trainer."""
    own = mutation is not None and mutation.module == setup.script.sites.module
    if mutation is not None and not own:
        setup.grounds[mutation.module].plant(mutation)
    found: Found = {}
    run_until_train(
        setup.script,
        setup.arguments,
        lambda trainer: found.update(act(trainer)),
        mutation if own else None,
    )
    return found
