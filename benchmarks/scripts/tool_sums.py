"""GRPO with a tool and two turns, as people write it: stock TRL, `tools=[add]`.

    python tool_sums.py MODEL DATA.jsonl [--fault mask|reading|old-log-probs]

It knows nothing of flatline. Each fault is a mistake of the script's own code.
"""

import argparse
import re

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


def add(a: int, b: int) -> str:
    """
    Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return str(a + b)


def correct(completions, answer, **kwargs):
    said = [re.findall(r"#### (\d+)", completion[-1]["content"]) for completion in completions]
    return [float(found[-1:] == [gold]) for found, gold in zip(said, answer, strict=True)]


def one_digit(completions, answer, **kwargs):
    """Reads a single digit: a right answer of two digits is paid as wrong."""
    said = [re.findall(r"#### (\d)", completion[-1]["content"]) for completion in completions]
    return [float(found[-1:] == [gold]) for found, gold in zip(said, answer, strict=True)]


class ToolsHidden(GRPOTrainer):
    """Takes what the tool said out of the completion, so that it carries no loss: the model that is
    trained no longer sees it."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        return {**batch, "completion_mask": batch["completion_mask"] * batch["tool_mask"]}


class OldOfTheLastBatch(GRPOTrainer):
    """Keeps old log-probs in a buffer, which is written after it is read."""

    kept = None

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        own = batch["old_per_token_logps"]
        before = torch.zeros_like(own) if self.kept is None else self.kept
        self.kept = own
        width = own.shape[1]
        before = torch.nn.functional.pad(before, (0, width))[:, :width]
        return {**batch, "old_per_token_logps": before}


TRAINERS = {"mask": ToolsHidden, "old-log-probs": OldOfTheLastBatch}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--fault", choices=[*TRAINERS, "reading"])
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    arguments = GRPOConfig(
        output_dir="outputs",
        max_steps=asked.steps,
        per_device_train_batch_size=128,
        num_generations=8,
        num_iterations=2,
        max_completion_length=28,
        max_tool_calling_iterations=1,
        learning_rate=6e-4,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="dapo",
        temperature=1.0,
        logging_steps=1,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = TRAINERS.get(asked.fault, GRPOTrainer)(
        model=AutoModelForCausalLM.from_pretrained(asked.model, dtype="float32"),
        processing_class=PreTrainedTokenizerFast.from_pretrained(asked.model),
        reward_funcs=one_digit if asked.fault == "reading" else correct,
        tools=[add],
        args=arguments,
        train_dataset=Dataset.from_json(asked.data),
    )
    trainer.train()


if __name__ == "__main__":
    main()
