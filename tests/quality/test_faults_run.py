"""Every planted fault goes through real steps: no fault breaks a run off."""

from dataclasses import replace

import pytest
import torch
from transformers.utils import logging

from flatline.config import RunConfig
from flatline.faults import FAULTS, PRESETS
from flatline.training.run import train

torch.set_num_threads(1)
logging.disable_progress_bar()

TINY = RunConfig(
    datasets="lab,,train[:24]",
    eval_datasets="lab,,validation[:4]",
    batch_size=16,
    num_generations=4,
    max_steps=2,
    kl_beta=0.04,
)


@pytest.mark.parametrize("fault", [*(fault.name for fault in FAULTS), *PRESETS])
def test_a_run_with_the_fault_comes_to_its_end(tmp_path, fault):
    result = train(replace(TINY, fault=fault, output_dir=str(tmp_path)))
    assert result.steps == 2
    assert len(result.scores) == 2, "held-out evaluation before and after"
