"""GRPO with `environment_factory=`: every rollout has an environment of its own."""

import os

from datasets import Dataset
from lab import PROMPTS, lab_tokenizer
from trl import GRPOConfig, GRPOTrainer


class Library:
    def __init__(self):
        self.asked = 0

    def reset(self, **row) -> None:
        self.asked = 0

    def retrieve_documents(self, query: str, top_n: int = 2) -> str:
        """
        Searches the documents and returns those that fit the query best.

        Args:
            query: What to look for.
            top_n: How many documents to return.
        """
        self.asked += 1
        return f"Document ID: {self.asked}\n# {query}\nThey work for Corndera."


def asked_once(completions, environments, **kwargs):
    return [
        float(environment.asked == 1) + len(str(completion)) / 1e4
        for completion, environment in zip(completions, environments, strict=True)
    ]


trainer = GRPOTrainer(
    model=os.environ["MODEL"],
    processing_class=lab_tokenizer(),
    reward_funcs=asked_once,
    environment_factory=Library,
    args=GRPOConfig(
        output_dir=os.environ["OUT"],
        max_steps=4,
        per_device_train_batch_size=4,
        num_generations=4,
        steps_per_generation=2,
        max_completion_length=256,
        learning_rate=1e-4,
        logging_steps=2,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    ),
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
)
trainer.train()
trainer.save_model(os.environ["OUT"])
