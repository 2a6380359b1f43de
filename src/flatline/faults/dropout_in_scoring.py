"""Dropout is active whenever the trainer scores tokens: trained, old and reference passes alike.

Each pass is another random part of the network, so ratio and KL are noise from the first step, and
the policy that is trained is not the one that sampled. Seen in TRL (issues 3234 and 3500).

Strength: share of the embedded input that is dropped.
"""

from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import dropout

from flatline.faults.base import Fault
from flatline.faults.sampler import policy
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class DropoutInScoring(Fault):
    name: ClassVar[str] = "dropout-in-scoring"
    hypothesis: ClassVar[str] = "H23"
    default: ClassVar[float] = 0.1

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        scoring = False

        # A hook, because a dropout layer would heed that flatline scores in evaluation mode.
        def drop(module: Any, inputs: Any, output: Tensor) -> Tensor:
            return dropout(output, strength, training=True) if scoring else output

        for model in filter(None, (policy(trainer), trainer.ref_model)):
            model.get_input_embeddings().register_forward_hook(drop)

        def score(inner: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal scoring
            scoring = True
            try:
                return inner(*args, **kwargs)
            finally:
                scoring = False

        wrap(trainer, "_get_per_token_logps_and_entropies", score)
