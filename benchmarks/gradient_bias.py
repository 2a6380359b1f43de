"""How far does a planted fault turn the gradient? One batch of the lab with it and without it.

    python benchmarks/gradient_bias.py judge-failing slow-dropped sampler-other-adapter
    python benchmarks/gradient_bias.py experts-rerouted --beside experts-rerouted:23

Prints the cosine and the length of the first step's gradient beside the healthy one of the same
prompts and random numbers; and the same of healthy batches of these prompts with other random
numbers, which is what chance does to a gradient of this size. Seconds a fault.
"""

import argparse
from tempfile import TemporaryDirectory

import torch
from transformers.utils import logging

from flatline.config import RunConfig
from flatline.live.hooks import swapped
from flatline.rollout import engine
from flatline.rollout.sampling import uniforms
from flatline.training.subject import OurSubject
from flatline.training.trainer import build

CHANCE = 3
"""Healthy batches with other random numbers."""
ANOTHER = 1000
"""Added to the seed of the sampler alone."""


def gradient(fault: str | None, draw: int = 0) -> torch.Tensor:
    """Of the first step, all tensors that are trained in one row."""
    with TemporaryDirectory() as folder, swapped(engine, uniforms=_other(draw)):
        config = RunConfig(fault=fault, output_dir=folder, eval_limit=8)
        found = OurSubject(build(config))._backward.gradients
    return torch.cat([found[name].flatten().float() for name in sorted(found)])


def _other(draw: int):
    return lambda seed, *given: uniforms(seed + ANOTHER * draw, *given)


def told(name: str, found: torch.Tensor, healthy: torch.Tensor) -> str:
    cosine = torch.cosine_similarity(found, healthy, dim=0)
    return f"{name}: cosine {cosine:.2f}, length {found.norm() / healthy.norm():.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="+")
    parser.add_argument("--beside", metavar="FAULT", help="a healthy twin, where it is not the lab")
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    args = parser.parse_args()
    healthy = gradient(args.beside)
    for draw in range(1, CHANCE + 1):
        print(told(f"healthy, draw {draw}", gradient(args.beside, draw), healthy), flush=True)
    for fault in args.faults:
        print(told(fault, gradient(fault), healthy), flush=True)


if __name__ == "__main__":
    main()
