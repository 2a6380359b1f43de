"""The step at which weights were last sent to vLLM begins at 0, so that step 0 takes its own for
sent. The first rollouts are those of the checkpoint that the server was started with, and a policy
that is given with an adapter is trained on what it would not have written.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.16.1",
    good="0.17.0",
    beside=TRANSFORMERS_4_51,
    stands_in="vLLM and its server: samples with what it is sent",
    lines="trl/trainer/grpo_trainer.py:463",
    expects=("H06", "H17", "H59", "H20"),
    later=6,
)
LEARNT = 0.1
"""Size of what the adapter holds when the run begins."""
STEPS = 4


def run(folder: Path) -> dict[str, Any]:
    return bridged(folder, parts=_parts(), **GIVEN)


def symptom(folder: Path) -> str:
    """How far the engine's weights are from the policy's, whenever it samples."""
    import torch
    import vllm
    from trl.trainer import grpo_trainer as own

    model, tokenizer = _parts()
    gaps = []

    class Watched(vllm.Client):  # type: ignore[misc, name-defined]
        model_path = model.get_base_model().name_or_path

        @torch.no_grad()
        def generate(self, prompts: Any, **given: Any) -> Any:
            model.merge_adapter()
            base = model.get_base_model().state_dict()
            pairs = [(base[f"{name}.base_layer.weight"], self.layer(name)) for name in LAYERS]
            gaps.append(max(float((one - other).abs().max()) for one, other in pairs))
            model.unmerge_adapter()
            return super().generate(prompts, **given)

        def layer(self, name: str) -> Any:
            return self.model.get_submodule(name).weight

    own.VLLMClient = Watched
    lab.trainer(folder, parts=(model, tokenizer), **GIVEN).train()
    said = ", ".join(f"{one:.4f}" for one in gaps)
    return f"weights of engine and policy differ by up to {said}"


GIVEN: dict[str, Any] = {
    "use_vllm": True,
    "temperature": 1.0,
    "max_steps": STEPS,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
}
LAYERS = [f"model.layers.{k}.self_attn.{name}" for k in range(4) for name in ("q_proj", "v_proj")]


def _parts() -> tuple[Any, Any]:
    import torch
    from peft import LoraConfig, get_peft_model

    model, tokenizer = lab.parts()
    adapter = LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    policy = get_peft_model(model, adapter)
    with torch.no_grad():
        for name, one in policy.named_parameters():
            if "lora_B" in name:
                one.normal_(std=LEARNT)
    return policy, tokenizer
