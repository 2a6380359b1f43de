"""Weights are loaded from safetensors or not at all: a pickle runs code when it is read."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flatline.errors import ModelError
from flatline.training.lab.tokenizer import checkpoint_folder
from flatline.training.models import load_policy


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def folder_with(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """The lab policy with its weights replaced by a pickle, and the file that would appear."""
    made, folder = tmp_path / "made", tmp_path / "model"
    shutil.copytree(checkpoint_folder(), folder)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    torch.save({"weight": Payload(f"touch {made}")}, folder / name)
    return folder, made


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.bin", "adapter_model.bin"])
def test_pickled_weights_are_refused_and_never_opened(tmp_path, name):
    folder, made = folder_with(tmp_path, name)
    with pytest.raises(ModelError, match="Pickled weights are never loaded"):
        load_policy(str(folder), device="cpu")
    assert not made.exists()


def test_an_adapter_of_pickled_weights_is_refused_and_never_run(tmp_path):
    folder, made = tmp_path / "adapter", tmp_path / "made"
    folder.mkdir()
    base = str(checkpoint_folder())
    (folder / "adapter_config.json").write_text(
        f'{{"peft_type": "LORA", "base_model_name_or_path": "{base}", "r": 4, '
        '"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}'
    )
    for file in Path(base).glob("*token*"):
        shutil.copy(file, folder)
    torch.save({"weight": Payload(f"touch {made}")}, folder / "adapter_model.bin")
    with pytest.raises(ModelError):
        load_policy(str(folder), device="cpu")
    assert not made.exists()


def test_a_checkpoint_that_lacks_a_tensor_is_refused_and_not_filled_with_random_numbers(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint_folder(), folder)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    lost = next(name for name in weights if name.endswith("down_proj.weight"))
    del weights[lost]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"lack 1 tensors, the first is `{lost}`"):
        load_policy(str(folder), device="cpu")
