"""What every TRL exhibit trains: flatline's lab policy on its word problems."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from flatline.tasks.gsm8k import GSM8K

STEPS = 3
"""What the slowest sign needs."""
PROBLEMS = 64


def checkpoint() -> Path:
    """A copy of the lab policy that transformers 4 can read as well."""
    folder = Path(tempfile.mkdtemp(prefix="museum-lab-"))
    with as_file(files("flatline.training.lab") / "checkpoint") as source:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["additional_special_tokens"] = config.pop("extra_special_tokens")
    config["chat_template"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    config["model_input_names"] = ["input_ids", "attention_mask"]
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def parts() -> tuple[Any, Any]:
    """Model and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    set_seed(0)
    where = checkpoint()
    model = AutoModelForCausalLM.from_pretrained(where)
    # TRL up to 0.29 reads what transformers 5 no longer keeps.
    if not hasattr(model, "warnings_issued"):
        model.warnings_issued = {}
    return model, AutoTokenizer.from_pretrained(where)


def rows() -> list[dict[str, Any]]:
    task = GSM8K()
    problems = task.load("lab", split="train")[:PROBLEMS]
    return [{"prompt": task.messages(one), "problem_id": one.id} for one in problems]


def right(completions: list[Any], problem_id: list[str], **_: Any) -> list[float]:
    """1 for the right answer."""
    task = GSM8K()
    known = {one.id: one for one in task.load("lab", split="train")[:PROBLEMS]}
    pairs = zip(completions, problem_id, strict=True)
    return [float(task.episode(known[i]).score(c[-1]["content"]).reward) for c, i in pairs]


def short(completions: list[Any], **_: Any) -> list[float]:
    """Up to 1 for brevity."""
    return [1.0 - min(len(one[-1]["content"]), 400) / 400 for one in completions]


def arguments(folder: Path, algorithm: str, **given: Any) -> Any:
    """A config of TRL's; a name that the release does not know is left out."""
    import trl

    asked = {
        "output_dir": str(folder / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_prompt_length": 512,
        "max_completion_length": 96,
        "learning_rate": 6e-4,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
        "gradient_checkpointing": False,
        "beta": 0.0,
    } | given
    config = getattr(trl, f"{algorithm}Config")
    known = config.__dataclass_fields__
    return config(**{name: value for name, value in asked.items() if name in known})


def trainer(
    folder: Path,
    *,
    parts: tuple[Any, Any] | None = None,
    rewards: Sequence[Any] = (right,),
    data: Sequence[dict[str, Any]] | None = None,
    more: dict[str, Any] | None = None,
    algorithm: str = "GRPO",
    **given: Any,
) -> Any:
    """A user's trainer. `given` are arguments of its config, `more` of the trainer itself."""
    import trl
    from datasets import Dataset

    model, tokenizer = parts or globals()["parts"]()
    return getattr(trl, f"{algorithm}Trainer")(
        model=model,
        processing_class=tokenizer,
        args=arguments(folder, algorithm, **given),
        train_dataset=Dataset.from_list(list(data or rows())),
        reward_funcs=list(rewards),
        **(more or {}),
    )
