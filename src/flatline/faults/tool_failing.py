"""The tool fails: a share of the calls comes back as an error instead of what was asked for.

Seen as timeouts of search servers and as parsers that refuse what the model writes (SimpleTIR,
arXiv 2509.02479, drops such turns).

Strength: share of the calls that fail. Needs flatline's own sampler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from flatline.faults.base import Fault
from flatline.faults.sampler import while_sampling
from flatline.faults.wrapping import needs_turns, place
from flatline.live.hooks import swapped
from flatline.live.trl.grpo import GrpoTrainer
from flatline.tasks.base import Episode, Observation, Problem, ToolCall

ERROR = "Error: the request timed out."


class ToolFailing(Fault):
    name: ClassVar[str] = "tool-failing"
    hypothesis: ClassVar[str] = "H41"
    default: ClassVar[float] = 0.5

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        @contextmanager
        def change(engine: Any, trainer: GrpoTrainer) -> Iterator[None]:
            healthy = engine.task.episode

            def episode(problem: Problem) -> Episode:
                return _failing(healthy(problem), strength)

            with swapped(engine.task, episode=episode):
                yield

        while_sampling(trainer, self.name, change)


def _failing(episode: Any, share: float) -> Episode:
    """The episode, some of whose calls fail; what they ask for decides which."""
    healthy = episode._run

    def run(call: ToolCall) -> Observation:
        if place(f"{episode.problem.id} {sorted(call.arguments.items())}") < share:
            episode.events["tool_errors"] += 1
            return Observation(text=ERROR)
        found: Observation = healthy(call)
        return found

    episode._run = run
    changed: Episode = episode
    return changed
