"""Grade-school problems on stock TRL, as people write it: GRPO or RLOO, LoRA, two rewards."""

import re
import sys

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from flatline.tasks import make_task
from flatline.training.lab.tokenizer import checkpoint_folder

NUMBER = re.compile(r"####\s*(-?[\d,\.]+)")


def number_in(text):
    found = NUMBER.findall(text)
    return found[-1].replace(",", "").rstrip(".") if found else None


def correct(completions, answer, **kwargs):
    said = [number_in(completion[0]["content"]) for completion in completions]
    return [float(number == gold) for number, gold in zip(said, answer, strict=True)]


def well_formed(completions, **kwargs):
    return [float(len(NUMBER.findall(one[0]["content"])) == 1) for one in completions]


def rows(count):
    task = make_task("gsm8k")
    problems = task.load(f"lab,,train[:{count}]", split="train")
    return [{"prompt": task.messages(problem), "answer": problem.answer} for problem in problems]


SETTINGS = {
    "lora": {"loss_type": "grpo"},
    "two-iterations": {"num_iterations": 2, "loss_type": "dapo", "epsilon_high": 0.28},
    "full": {
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "beta": 0.0,
        "mask_truncated_completions": True,
        "learning_rate": 2e-4,
    },
    "sequences": {"importance_sampling_level": "sequence", "loss_type": "bnpo"},
    "short": {"max_completion_length": 32, "loss_type": "dapo", "mask_truncated_completions": True},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0, "scale_rewards": "batch"},
}
OF_RLOO = {
    "rloo": {},
    "rloo-twice": {"num_iterations": 2, "normalize_advantages": True, "reward_clip_range": (0, 1)},
}


def main(setting):
    arguments = {
        "output_dir": "outputs",
        "max_steps": 20,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 8,
        "max_completion_length": 64,
        "learning_rate": 1e-3,
        "beta": 0.04,
        "reward_weights": [1.0, 0.2],
        "seed": 7,
        "logging_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if setting in OF_RLOO:
        kind, args = RLOOTrainer, RLOOConfig(**arguments | OF_RLOO[setting])
    else:
        kind, args = GRPOTrainer, GRPOConfig(**arguments | SETTINGS[setting])
    folder = str(checkpoint_folder())
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=[correct, well_formed],
        args=args,
        train_dataset=Dataset.from_list(rows(64)),
        peft_config=None if setting == "full" else adapter,
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "lora")
