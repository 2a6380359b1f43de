"""Plants one-line changes in a copy of TRL and prints, as JSON, which lines a checkup names.

    python -m tests.elsewhere_child FOLDER PACKAGE:CHANGE,CHANGE...

FOLDER goes in front of `sys.path`; PACKAGE is the name that a copy in it is imported by.
"""

import importlib
import json
import linecache
import sys
from pathlib import Path

CHANGES = {
    "advantages": (
        "advantages = rewards - mean_grouped_rewards",
        "advantages = rewards + mean_grouped_rewards",
    ),
    "mask": (
        "completion_mask = completion_mask * (~is_truncated).unsqueeze(1).int()",
        "completion_mask = completion_mask * is_truncated.unsqueeze(1).int()",
    ),
    "loss": (
        "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()",
        "loss = ((per_token_loss * mask).sum(-1) / mask.sum().clamp(min=1.0)).mean()",
    ),
    "log-probs": (
        "all_logps.append(outputs.log_probs[:, -logits_to_keep:])",
        "all_logps.append(outputs.log_probs[:, -logits_to_keep:] / 2)",
    ),
    "ratio": (
        "log_ratio = per_token_logps - old_per_token_logps",
        "log_ratio = per_token_logps + old_per_token_logps",
    ),
    "kl": (
        "per_token_loss = per_token_loss + self.beta * per_token_kl",
        "per_token_loss = per_token_loss - self.beta * per_token_kl",
    ),
    "rewards": (
        "rewards_per_func = gather(rewards_per_func)",
        "rewards_per_func = gather(rewards_per_func).roll(1, 0)",
    ),
    "setting": ("self.beta = args.beta", "self.beta = args.beta * 2"),
}
"""By name, a line of `grpo_trainer.py` and what it is changed to."""
SETTINGS = {"mask": "cut-masked"}


def named(module: str, change: str) -> dict[str, list[str]]:
    """Which line was changed, and which a checkup names for its first alarm."""
    import foreign_script

    import flatline
    from flatline.live.where.statements import statements

    trainers = importlib.import_module(module)
    file = Path(trainers.__file__)
    healthy, (before, after) = file.read_text(), CHANGES[change]
    assert before in healthy, f"TRL has no line `{before}` any more"
    number = healthy[: healthy.index(before)].count("\n") + 1
    try:
        file.write_text(healthy.replace(before, after, 1))
        linecache.checkcache()
        statements.cache_clear()
        trainers = importlib.reload(trainers)
        script = foreign_script.script_of(SETTINGS.get(change, "grpo"))
        script.trainer = trainers.GRPOTrainer
        report = flatline.checkup(foreign_script.build(script))
    finally:
        file.write_text(healthy)
    told = [f"{one.line}: {one.source}" for one in report.alarms[0].where] if report.alarms else []
    return {"changed": f"{number}: {after}", "named": told}


if __name__ == "__main__":
    folder, *asked = sys.argv[1:]
    sys.path[:0] = [folder, str(Path(__file__).parents[1] / "benchmarks")]
    sys.dont_write_bytecode = True
    found = {}
    for package, changes in (one.split(":") for one in asked):
        module = f"{package}.trainer.grpo_trainer"
        found[package] = {one: named(module, one) for one in changes.split(",")}
    print(json.dumps(found))
