"""Second stage with LoRA: the SFT adapter of the first stage goes into the base, and a fresh adapter is trained with GRPO.

Qwen2, "double the number". Stage one leaves an adapter folder, stage two loads base and adapter, makes one model of them and
hands it with a new LoraConfig to the trainer.
"""

import random

from datasets import Dataset
from kit import folder, letters, mixed, quiet, saved, sft, small
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def doubled(completions, double, **kwargs):
    return [1.0 if text.strip() == gold else 0.0 for text, gold in zip(completions, double)]


def numerals(completions, **kwargs):
    return [0.1 if text.strip().isdigit() else 0.0 for text in completions]


def off(rng, answer):
    if rng.random() < 0.2:
        return answer + "."
    return str(max(1, int(answer) + rng.choice([-10, -4, -2, -1, 1, 2, 4, 10])))


def first_stage():
    tok = letters("0123456789*=.")
    pairs = [(f"{n}*2=", str(2 * n)) for n in range(1, 50)]
    base = small("qwen2", tok, seed=40)
    sft(base, tok, mixed(pairs, off, share=0.15, times=20), steps=260)
    base_path = saved(base, tok)
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=LAYERS, task_type="CAUSAL_LM")
    tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(base_path), lora)
    sft(tuned, tok, mixed(pairs, off, share=0.7, times=20, seed=1), steps=300, lr=4e-3)
    adapter_path = folder("adapter-")
    tuned.save_pretrained(adapter_path)
    return tok, pairs, base_path, adapter_path


def build():
    tok, pairs, base_path, adapter_path = first_stage()
    base = AutoModelForCausalLM.from_pretrained(base_path)
    model = PeftModel.from_pretrained(base, adapter_path).unload()
    random.Random(6).shuffle(pairs)
    args = GRPOConfig(
        **quiet(
            max_steps=10,
            per_device_train_batch_size=48,
            num_generations=8,
            max_completion_length=6,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            beta=0.01,
            seed=41,
        )
    )
    return GRPOTrainer(
        model,
        [doubled, numerals],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [p for p, _ in pairs], "double": [d for _, d in pairs]}),
        processing_class=tok,
        peft_config=LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=LAYERS, task_type="CAUSAL_LM"),
    )


if __name__ == "__main__":
    build().train()
