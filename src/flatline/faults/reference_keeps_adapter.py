"""The reference pass forgets to switch the adapter off: policy and reference are one.

The KL divergence is zero to the last bit, whatever beta is, and nothing holds the policy. Not from
a report: one of the seeds' own suspicions.

Strength: none; the adapter is on or off. A run without KL gets beta 0.04.
"""

from dataclasses import replace
from typing import Any, ClassVar

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.faults.adapter_frozen import needs_lora
from flatline.faults.base import Fault
from flatline.faults.sampler import policy
from flatline.faults.scoring import USUAL_BETA, is_reference
from flatline.faults.wrapping import wrap
from flatline.live.trl.grpo import GrpoTrainer


class ReferenceKeepsAdapter(Fault):
    name: ClassVar[str] = "reference-keeps-adapter"
    hypothesis: ClassVar[str] = "H06"

    def change(self, config: RunConfig, strength: float) -> RunConfig:
        return replace(config, kl_beta=config.kl_beta or USUAL_BETA)

    def plant(self, trainer: GrpoTrainer, strength: float) -> None:
        if not hasattr(policy(trainer), "peft_config"):
            raise ConfigError(needs_lora(self.name))

        def score(inner: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_reference(trainer, model):
                return inner(model, *args, **kwargs)
            layers = policy(trainer).base_model
            layers.enable_adapter_layers()
            try:
                return inner(model, *args, **kwargs)
            finally:
                layers.disable_adapter_layers()

        wrap(trainer, "_get_per_token_logps_and_entropies", score)
