"""GRPO with a tool and several turns, as people write it: stock TRL, `tools=[calculate]`."""

import re
import sys

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from flatline.tasks import make_task
from flatline.tasks.arithmetic import ExpressionError, evaluate, show
from flatline.tasks.toolmath import CALCULATE
from flatline.training.environment import tokenizer_for_trl
from flatline.training.lab.tokenizer import checkpoint_folder

ANSWER = re.compile(r"<answer>\s*(-?[\d,]+)\s*</answer>")


def calculate(expression: str) -> str:
    """
    Works out an arithmetic expression with + - * / and parentheses, exactly.

    Args:
        expression: Such as 12 * (3 + 4).
    """
    try:
        return show(evaluate(expression))
    except ExpressionError as error:
        return f"error: {error}"


calculate.tool = CALCULATE  # the schema that the lab policy has learned to read


def answer_of(completion):
    last = completion[-1] if completion else {}
    found = ANSWER.findall(last.get("content") or "")
    return found[-1].replace(",", "") if found else None


def correct(completions, answer, **kwargs):
    pairs = zip(completions, answer, strict=True)
    return [float(answer_of(completion) == gold) for completion, gold in pairs]


def called(completions, **kwargs):
    replies = [[one for one in said if one["role"] == "tool"] for said in completions]
    return [min(len(some), 2) / 2 for some in replies]


def rows(count):
    task = make_task("toolmath")
    problems = task.load(f"lab,,train[:{count}]", split="train")
    return [{"prompt": task.messages(problem), "answer": problem.answer} for problem in problems]


def main(setting):
    folder = str(checkpoint_folder())
    arguments = GRPOConfig(
        output_dir="outputs",
        max_steps=20,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=96,
        max_tool_calling_iterations=4,
        learning_rate=1e-3,
        beta=0.0 if setting == "no-kl" else 0.02,
        loss_type="dapo" if setting == "no-kl" else "grpo",
        reward_weights=[1.0, 0.2],
        seed=11,
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
        processing_class=tokenizer_for_trl(AutoTokenizer.from_pretrained(folder)),
        reward_funcs=[correct, called],
        tools=[calculate],
        args=arguments,
        train_dataset=Dataset.from_list(rows(64)),
        peft_config=LoraConfig(
            r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "lora")
