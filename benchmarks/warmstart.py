"""What the plays of a warm start earn themselves, by how careless they are.

python benchmarks/warmstart.py [--musique FILE] [--gsm8k FILE]
"""

import argparse
import random

from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Limits
from flatline.tasks import make_task
from flatline.training.lab.tokenizer import build_tokenizer
from flatline.training.warmstart_plays import fitted

LEVELS = (0.0, 0.2, 0.4, 0.7, 1.0)
UNLIMITED = Limits(max_turns=8, max_new_tokens=10**6)
"""The embedded tokenizer spells real text in bytes, so its turns are long."""


def row(name: str, spec: str) -> str:
    task = make_task(name)
    problems = task.load(spec, split="train")
    chat = ChatFormat(build_tokenizer(), task.tools)
    means, left_out = [], 0
    for careless in LEVELS:
        made = [
            fitted(
                chat,
                task,
                problem,
                rng=random.Random(f"{careless}{problem.id}"),
                careless=careless,
                limits=UNLIMITED,
            )
            for problem in problems
        ]
        rewards = [play.score.reward for play, _ in made if play is not None]
        left_out = max(left_out, len(made) - len(rewards))
        means.append(f"{sum(rewards) / len(rewards):.2f}")
    return f"| {name}, {len(problems)} problems | {' | '.join(means)} | {left_out} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--musique", default="lab,,train[:300]")
    parser.add_argument("--gsm8k", default="lab,,train[:300]")
    parser.add_argument("--toolmath", default="lab,,train[:300]")
    given = parser.parse_args()
    print(f"| careless | {' | '.join(f'{level:g}' for level in LEVELS)} | left out at most |")
    print("|---" * (len(LEVELS) + 2) + "|")
    for name in ("musique", "gsm8k", "toolmath"):
        print(row(name, getattr(given, name)), flush=True)


if __name__ == "__main__":
    main()
