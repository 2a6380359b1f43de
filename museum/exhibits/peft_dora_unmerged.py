"""Where a layer keeps its weight as GPT-2 does, DoRA takes its magnitudes out of it again along the
wrong axis. Each time the policy is merged for the sampler, the weight that is left behind is
another one, which no gradient asked for.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.20.0",
    good="0.21.0",
    beside=("trl==1.10.0",),
    stands_in="vLLM: samples with what it is sent; a projection as GPT-2 has it, in the lab policy",
    lines="peft/tuners/lora/variants.py:214",
    expects=("H58", "H06", "H18", "H17", "H59"),
    later=6,
)
LAYER = "o_proj"


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """How far the frozen weights under the adapter are from where they began."""
    trainer = _trainer(folder)
    model = trainer.accelerator.unwrap_model(trainer.model)
    frozen = [(n, p) for n, p in model.named_parameters() if "base_layer.weight" in n]
    before = {name: one.detach().clone() for name, one in frozen}
    trainer.train()
    far = max(float((one - before[name]).abs().max()) for name, one in frozen)
    return f"{len(frozen)} frozen weights moved by up to {far:.2g}"


def _trainer(folder: Path) -> Any:
    import vllm
    from peft import LoraConfig

    vllm.RequestOutput = None

    class Engine(vllm.LLM):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.model = _as_in_gpt2(self.model)

    vllm.LLM = Engine
    model, tokenizer = lab.parts()
    adapter = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=[LAYER],
        task_type="CAUSAL_LM",
        use_dora=True,
        fan_in_fan_out=True,
    )
    return lab.trainer(
        folder,
        parts=(_as_in_gpt2(model), tokenizer),
        more={"peft_config": adapter},
        use_vllm=True,
        vllm_mode="colocate",
        temperature=1.0,
        max_steps=5,
        learning_rate=3e-3,
    )


def _as_in_gpt2(model: Any) -> Any:
    """The same function, by layers whose weights are turned."""
    from transformers.pytorch_utils import Conv1D

    for layer in model.model.layers:
        own = getattr(layer.self_attn, LAYER)
        turned = Conv1D(own.out_features, own.in_features)
        turned.weight.data = own.weight.detach().T.contiguous()
        turned.bias.data = own.bias.detach().clone()
        setattr(layer.self_attn, LAYER, turned)
    return model
