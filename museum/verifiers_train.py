"""Somebody's training with verifiers: the lab policy on MuSiQue, by the wheel's own trainer.

    python museum/verifiers_train.py FOLDER SEED STEPS

The trained policy is saved whole in FOLDER/model. It knows of no remedy and records nothing:
`flatline run` does.
"""

import sys
from pathlib import Path
from typing import Any

from museum import lab, verifiers_lab


def save(trainer: Any, checkpoint: Path, model: Path) -> None:
    """Adapters are merged, and what is no weight is the checkpoint's."""
    merged = trainer.model.merge_and_unload()
    model.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    merged.save_pretrained(model)


def main(folder: Path, seed: int, steps: int) -> None:
    checkpoint = lab.checkpoint()
    with verifiers_lab.serving(checkpoint) as port:
        verifiers_lab.stand_ins(checkpoint, port)
        env = verifiers_lab.environment()
        trainer = verifiers_lab.grpo_trainer(folder, port, checkpoint, env, steps=steps, seed=seed)
        trainer.train()
    save(trainer, checkpoint, folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
