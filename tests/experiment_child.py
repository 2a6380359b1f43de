"""Stands for a user's training script: writes a trace, and can be told to go wrong in many ways."""

import argparse
import os
import signal
import time
from pathlib import Path

from flatline import Recorder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--beta", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--gain", type=float, default=0.3, help="reward that beta 0 is worth")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--count", type=Path, help="file that gains a line for every start")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--stubborn", action="store_true", help="does not end when asked to")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--silent", action="store_true", help="records nothing")
    given = parser.parse_args()
    if given.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.count:
        with given.count.open("a") as file:
            file.write(f"{given.beta} {given.seed} {os.getpid()}\n")
    if given.fail:
        raise SystemExit("the data set is missing")
    if not given.silent:
        record(given)


def record(given: argparse.Namespace) -> None:
    """The hypothesis H09 fires where beta is not 0: the prompt is hidden from the trainer."""
    shown = int(given.beta == 0)
    end = 0.4 + 0.01 * given.seed * (1 - shown) + given.gain * shown
    with Recorder(given.out, settings={"num_generations": 2, "beta": given.beta}) as recorder:
        recorder.log_step(step=0, heldout_reward=0.4)
        for step in range(1, given.steps + 1):
            places = [{"step": step, "rollout": i, "group": i // 2} for i in range(4)]
            recorder.log_rollouts(
                [{**place, "reward": float(i % 2)} for i, place in enumerate(places)]
            )
            tokens = {"prompt_ids": [1, 2], "prompt_attended": [shown] * 2, "ids": [3, 4]}
            tokens |= {"author": [1, 1], "trained": [1, 1], "attended": [1, 1]}
            tokens |= {"sampler": [-0.5, -0.5], "trainer": [-0.5, -0.5]}
            recorder.log_tokens([{**place, **tokens} for place in _placed(places)])
            last = {"heldout_reward": end} if step == given.steps else {}
            reward = 0.4 + (end - 0.4) * step / given.steps
            recorder.log_step(step=step, reward=reward, metrics={"my/beta": given.beta}, **last)
            time.sleep(given.pause)


def _placed(places: list[dict[str, int]]) -> list[dict[str, int]]:
    return [{name: place[name] for name in ("step", "rollout")} for place in places]


if __name__ == "__main__":
    main()
