"""Single-turn GRPO with a plain reward function, as in TRL's quickstart."""

import os

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

dataset = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"What is {a} + {a}?"}]} for a in range(16)]
)


def reward_num_unique_letters(completions, **kwargs):
    return [float(len(set(completion[0]["content"]))) for completion in completions]


trainer = GRPOTrainer(
    model=os.environ["MODEL"],
    reward_funcs=reward_num_unique_letters,
    args=GRPOConfig(
        output_dir=os.environ["OUT"],
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=24,
        learning_rate=1e-3,
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    ),
    train_dataset=dataset,
)
trainer.train()
trainer.save_model(os.environ["OUT"])
