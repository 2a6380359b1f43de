"""An adapter on an embedding that scales its output, as Gemma 3's does, adds its own part without
that scale; merged into the weight the same part is scaled. A sampler that is sent the merged
weights draws from another policy than is trained.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4, without
from museum.bridge import bridged
from museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    bad="0.17.1",
    good="0.18.0",
    beside=(*without("peft", TRANSFORMERS_4), "trl==0.20.0"),
    stands_in="vLLM: samples with what it is sent; an embedding that scales, in the lab policy",
    lines="peft/tuners/lora/layer.py:1045",
    expects=("H06", "H17", "H18", "H59"),
    later=3,
)
SCALE = 8.0


def run(folder: Path) -> dict[str, Any]:
    import vllm

    class Engine(vllm.LLM):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.model = _scaled(self.model)

    vllm.LLM = Engine
    model, tokenizer = lab.parts()
    parts = (_scaled(model), tokenizer)
    return bridged(folder, parts=parts, more={"peft_config": _adapter()}, **GIVEN)


def symptom(folder: Path) -> str:
    """The policy before and after its adapter is merged."""
    import torch
    from peft import get_peft_model

    model = get_peft_model(_scaled(lab.parts()[0]), _adapter())
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                one.normal_(std=0.02)
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

    layers = ["embed_tokens", "q_proj"]
    return LoraConfig(r=8, lora_alpha=16, target_modules=layers, task_type="CAUSAL_LM")


def _scaled(model: Any) -> Any:
    """The same function, by smaller embeddings that are scaled where they are read."""
    import torch

    class Scaled(torch.nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = super().forward(ids) * self.embed_scale
            return found

    own = model.model.embed_tokens
    model.lm_head.weight = torch.nn.Parameter(own.weight.detach().clone())
    model.config.tie_word_embeddings = False
    made = Scaled(own.num_embeddings, own.embedding_dim, own.padding_idx)
    made.weight = torch.nn.Parameter(own.weight.detach() / SCALE)
    made.register_buffer("embed_scale", torch.tensor(SCALE), persistent=False)
    model.model.embed_tokens = made
    return model
