"""The bias of an adapter is merged into the weights without the adapter's scale, which the layer
itself applies. A sampler that is sent the merged weights draws from another policy than is
trained, and drifts from it as the bias grows.
"""

from pathlib import Path
from typing import Any

from museum.bases import OLD_HUB, without
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.15.2",
    good="0.16.0",
    beside=("transformers==4.51.3", "tokenizers==0.21.4", *without("peft", OLD_HUB), "trl==0.20.0"),
    stands_in="vLLM: samples with what it is sent",
    lines="peft/tuners/lora/layer.py:624-640, `merge`",
    expects=("H06", "H17", "H18", "H59"),
    later=2,
)
SCALE = 4


def run(folder: Path) -> dict[str, Any]:
    return bridged(folder, more={"peft_config": _adapter()}, **GIVEN)


def symptom(folder: Path) -> str:
    """One adapted layer, before and after its adapter is merged."""
    import torch
    from peft import get_peft_model

    from museum import lab

    model = get_peft_model(lab.parts()[0], _adapter())
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.1)
    ids = torch.arange(40)[None]
    apart = model(ids).logits
    model.merge_adapter()
    gap = (model(ids).logits - apart).abs().max()
    return f"logits differ by up to {float(gap):.2g} when the adapter is merged"


GIVEN: dict[str, Any] = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "temperature": 1.0,
    "max_steps": 5,
    "learning_rate": 3e-3,
    "generation_kwargs": {},
}


def _adapter() -> Any:
    from peft import LoraConfig

    layers = ["q_proj", "k_proj", "v_proj", "o_proj"]  # those that have a bias to merge into
    return LoraConfig(
        r=8, lora_alpha=8 * SCALE, target_modules=layers, lora_bias=True, task_type="CAUSAL_LM"
    )
