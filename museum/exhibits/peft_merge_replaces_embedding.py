"""On a CPU, where an adapter in half precision is merged in float32, one on an embedding is put
back as new tensors. Each time the policy is sent to the sampler the optimizer is left with the
tensors of before, and what the model holds is not trained any more.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.19.1",
    good="0.20.0",
    beside=("trl==1.10.0",),
    stands_in="vLLM: samples with what it is sent",
    lines="peft/tuners/lora/layer.py:1225-1226",
    expects=("H26", "H58", "H06"),
    later=4,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """How many of the adapter's numbers on the embedding were changed by the training."""
    trainer = _trainer(folder)
    before = {name: one.detach().clone() for name, one in _embedded(trainer)}
    trainer.train()
    pairs = [(one.detach(), before[name]) for name, one in _embedded(trainer)]
    moved = sum(int((one != other).sum()) for one, other in pairs)
    held = {id(one) for group in trainer.optimizer.param_groups for one in group["params"]}
    own = sum(id(one) in held for _, one in _embedded(trainer))
    total = sum(other.numel() for _, other in pairs)
    return f"{moved} of {total} numbers moved; the optimizer has {own} of {len(pairs)} tensors"


def _embedded(trainer: Any) -> list[tuple[str, Any]]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return [(name, one) for name, one in model.named_parameters() if "lora_embedding" in name]


def _trainer(folder: Path) -> Any:
    import torch
    import vllm
    from peft import LoraConfig, get_peft_model

    vllm.RequestOutput = None
    model, tokenizer = _untied(*lab.parts())
    adapter = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["embed_tokens", "q_proj"],
        task_type="CAUSAL_LM",
    )
    policy = get_peft_model(model, adapter)
    for name, one in policy.named_parameters():
        if "lora_embedding" in name:
            # Smaller than PEFT's own, of which half precision would round updates away.
            one.data = (one.data / 16).to(torch.bfloat16)
    given = {"use_vllm": True, "vllm_mode": "colocate", "temperature": 1.0}
    return lab.trainer(folder, parts=(policy, tokenizer), max_steps=5, learning_rate=3e-3, **given)


def _untied(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """With an output layer of its own, in the checkpoint as well, which the sampler begins with: an
    adapter on a tied embedding is merged into both, a defect that the good release has too."""
    import torch

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.save_pretrained(model.name_or_path)
    return model, tokenizer
