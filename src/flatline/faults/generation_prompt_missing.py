"""From the second turn on, the trainer's tokens lack the header that opens the model's turn.

The sampler wrote after `<|im_start|>assistant`, the trainer scores as if it had not been there.
Seen in verifiers before its pull request 476: turns were rendered without the generation prompt.

Strength: share of the later turns that lack it.
"""

from typing import ClassVar

from flatline.errors import ConfigError
from flatline.faults.base import Fault
from flatline.faults.wrapping import Sampled, edit_rollouts, needs_turns, runs, spread
from flatline.live.trl.grpo import GrpoTrainer

USER = [{"role": "user", "content": "x"}]


class GenerationPromptMissing(Fault):
    name: ClassVar[str] = "generation-prompt-missing"
    hypothesis: ClassVar[str] = "H10"

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        needs_turns(trainer, self.name)
        header = _header(trainer)

        def edit(rollout: Sampled) -> Sampled:
            ids = rollout.completion_ids
            starts = [turn.start for turn in runs(rollout.mask)]
            opened = [at for at in starts if at and ids[at - len(header) : at] == header]
            chosen = zip(opened, spread(len(opened), strength), strict=True)
            gone = {i for at, lost in chosen if lost for i in range(at - len(header), at)}
            return dropped(rollout, gone)

        edit_rollouts(trainer, edit)


def dropped(rollout: Sampled, gone: set[int]) -> Sampled:
    """The rollout without the completion tokens at these positions."""
    kept = [i for i in range(len(rollout.mask)) if i not in gone]
    logprobs = rollout.logprobs
    return rollout._replace(
        completion_ids=[rollout.completion_ids[i] for i in kept],
        mask=[rollout.mask[i] for i in kept],
        logprobs=None if logprobs is None else [logprobs[i] for i in kept],
    )


def _header(trainer: GrpoTrainer) -> list[int]:
    """Tokens that the chat template puts in front of the model's turn."""
    tokenizer = trainer.processing_class
    template = getattr(getattr(trainer.rollout_func, "chat", None), "template", None)
    shut, opened = (
        tokenizer.apply_chat_template(
            USER, tokenize=False, add_generation_prompt=opens, chat_template=template
        )
        for opens in (False, True)
    )
    header = opened.removeprefix(shut)
    if not header or header == opened:
        raise ConfigError(
            f"The chat template of {type(tokenizer).__name__} puts nothing in front of the model's "
            "turn.\nThere is no generation prompt to lose."
        )
    return list(tokenizer(header, add_special_tokens=False)["input_ids"])
