"""How far do faults turn the gradient that the lab cannot have: of images, and between processes?

    python benchmarks/gradient_bias_small.py

As `gradient_bias.py`, on the small untrained models of the tests that plant these faults: cosine
and length of the first step's gradient beside the healthy one of the same random numbers, over four
of these; and of healthy ones of the same prompts with other random numbers. Under a minute.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.launched import launched
from tests.ranks_child import FAULTS, first_gradient, turned
from tests.test_trl_breadth import BlindTrainer, LookingTrainer, vision_trainer

Turned = dict[str, list[tuple[float, float]]]

IMAGES = {
    None: (LookingTrainer, 0),
    "another prompt's image": (LookingTrainer, 4),
    "no image": (BlindTrainer, 0),
}
"""Which trainer, and by how many rows its images are off."""


def with_images(name: str | None, draw: int) -> torch.Tensor:
    kind, rows_off = IMAGES[name]
    with TemporaryDirectory() as folder:
        trainer = vision_trainer(Path(folder), kind, max_grad_norm=0)
        trainer.turned = rows_off
        return first_gradient(trainer, draw)


def measured() -> Iterator[tuple[str, Turned]]:
    yield "images", turned(with_images, [name for name in IMAGES if name])
    with TemporaryDirectory() as folder:
        said = launched(Path(folder), "ddp", f"gradients,{','.join(FAULTS)}")
    for process in (0, 1):
        found = said["gradients", process]
        yield f"process {process}", {name: found[name] for name in ("healthy", *FAULTS)}


def main() -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    for where, found in measured():
        for name, apart in found.items():
            cosines, lengths = zip(*apart, strict=True)
            print(
                f"{where}, {name}: cosine {min(cosines):.2f} to {max(cosines):.2f}, "
                f"length {min(lengths):.2f} to {max(lengths):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
