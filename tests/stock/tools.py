"""GRPO with `tools=`: TRL runs its own tool loop."""

import os

from datasets import Dataset
from lab import PROBLEMS, PROMPTS, lab_tokenizer
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def retrieve_documents(query: str, top_n: int = 2) -> str:
    """
    Searches the documents and returns those that fit the query best.

    Args:
        query: What to look for.
        top_n: How many documents to return.
    """
    return f"Document ID: 1\n# {query}\nThey work for Corndera."


def used_the_tool(completions, answer, **kwargs):
    return [
        float(any(message["role"] == "tool" for message in completion))
        + len(completion[-1].get("content") or "") / 1000
        for completion in completions
    ]


def is_right(completions, answer, **kwargs):
    return [float(a in str(c)) for c, a in zip(completions, answer, strict=True)]


dataset = Dataset.from_list(
    [
        {"prompt": prompt, "answer": problem.answer}
        for prompt, problem in zip(PROMPTS, PROBLEMS, strict=True)
    ]
)
trainer = GRPOTrainer(
    model=os.environ["MODEL"],
    processing_class=lab_tokenizer(),
    reward_funcs=[used_the_tool, is_right],
    tools=[retrieve_documents],
    args=GRPOConfig(
        output_dir=os.environ["OUT"],
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        beta=0.04,
        max_completion_length=256,
        learning_rate=1e-3,
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    ),
    train_dataset=dataset,
    peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()
trainer.save_model(os.environ["OUT"])
