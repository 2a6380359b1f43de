"""A warm start on the lab policy is worth its name; tests/test_warmstart.py has its parts."""

from flatline.config import RunConfig
from flatline.training.warmstart import WarmStart, warmstart


def test_imitating_careful_plays_raises_the_held_out_reward_of_the_lab_policy(tmp_path):
    run = RunConfig(
        datasets="lab,,train[:120]",
        eval_datasets="lab,,validation[:32]",
        batch_size=16,
        max_steps=12,
        eval_samples=2,
        lora_r=16,
        lora_alpha=32,
        output_dir=str(tmp_path),
    )
    result = warmstart(WarmStart(run=run, careless=0.0), on_step=lambda *_: None)
    gain = result.to_json()["gain"]["combined"]
    assert gain["low"] > 0.05
    assert result.reward > 0.98
