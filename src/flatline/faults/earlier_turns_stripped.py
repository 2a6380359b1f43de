"""The trainer's history lacks what the model thought in earlier turns, though the sampler saw it.

Chat templates of thinking models delete the thinking of all turns but the last when a conversation
is rendered again. Seen with Qwen3 in verl (issues 6719 and 6854) and in ART (issue 726).

Strength: share of each earlier turn that is deleted, its last words; how it begins and the token
that ends it stay. Needs several turns.
"""

from typing import ClassVar

from flatline.faults.base import Fault
from flatline.faults.wrapping import Sampled, edit_rollouts, needs_turns, runs
from flatline.live.trl.grpo import GrpoTrainer


class EarlierTurnsStripped(Fault):
    name: ClassVar[str] = "earlier-turns-stripped"
    hypothesis: ClassVar[str] = "H12"
    default: ClassVar[float] = 0.5

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)

        def edit(rollout: Sampled) -> Sampled:
            earlier = runs(rollout.mask)[:-1]
            gone = {at for turn in earlier for at in _last_words(turn, strength)}
            kept = [at for at in range(len(rollout.mask)) if at not in gone]
            logprobs = rollout.logprobs
            return rollout._replace(
                completion_ids=[rollout.completion_ids[at] for at in kept],
                mask=[rollout.mask[at] for at in kept],
                logprobs=None if logprobs is None else [logprobs[at] for at in kept],
            )

        edit_rollouts(trainer, edit)


def _last_words(turn: range, share: float) -> range:
    return turn[len(turn) - 1 - int(share * (len(turn) - 1)) : -1]
