"""GRPO as somebody trains it with unsloth; what flatline finds is printed as JSON.

Run with build/unsloth on the path; the folder of `prepare` and one for the run are given.
"""

import unsloth  # isort: skip  (it wants to come before what it patches)

import json
import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import flatline

STEPS, GROUP = 3, 4


def letters(completions, **_):
    return [text.count("e") / max(1, len(text)) for text in completions]


def main() -> None:
    given, out = map(Path, sys.argv[1:])
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        str(given / "model"), max_seq_length=128, load_in_4bit=False
    )
    model = unsloth.FastLanguageModel.get_peft_model(model, r=4, lora_alpha=8)
    asked = GRPOConfig(
        output_dir=str(out / "out"),
        max_steps=STEPS,
        num_generations=GROUP,
        per_device_train_batch_size=GROUP,
        max_completion_length=16,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=letters,
        args=asked,
        train_dataset=Dataset.from_list([{"prompt": f"say {i}"} for i in range(64)]),
        processing_class=tokenizer,
    )
    looked = flatline.checkup(trainer)
    flatline.attach(trainer, out / "run")
    trainer.train()
    alarms = [(one.hypothesis, one.level.value, one.text) for one in looked.alarms]
    print(json.dumps({"trainer": f"{type(trainer).__module__}", "alarms": alarms}))


if __name__ == "__main__":
    main()
