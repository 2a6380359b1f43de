"""An agent loop as a user writes one, with the planted defect of a wrong loss mask."""

from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


@register("lab_mask")
class EndNotTrained(SingleTurnAgentLoop):
    """Leaves the end token out of the loss: completions never learn to stop."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        output = await super().run(sampling_params, **kwargs)
        output.response_mask[-1] = 0
        return output
