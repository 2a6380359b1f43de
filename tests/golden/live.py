"""Scripts of strangers whose trainer has its checkup anew each time: what no recording holds is the
line of code. Each in a process of its own, forked from one that has imported torch and TRL."""

import functools
import importlib
import io
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path

from tests.golden.entry import Entry, entry_of

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
CHOSEN = (
    "eighth/faulty/groups_after_the_shuffle",
    "eighth/faulty/lambda_returns_the_rate",
    "eighth/faulty/mask_of_the_other_library",
    "fifth/faulty/engine_sync_rebinds",
    "ninth/faulty/cosine_by_hand",
    "ninth/faulty/digits_in_words",
    "ninth/faulty/easy_first",
    "ninth/healthy/golf_strokes",
    "seventh/faulty/optimizer_before_lora",
    "seventh/faulty/sampler_repeats_four",
    "seventh/faulty/scratchpad_masked_from_attention",
    "sixth/faulty/delta_as_margin",
    "sixth/faulty/logits_not_shifted",
    "sixth/faulty/maximize_reward",
    "sixth/faulty/prefix_only_at_sampling",
    "sixth/faulty/spike_guard_never_opens",
    "sixth/healthy/ranked_in_group",
    "tenth/faulty/entropy_bonus",
    "tenth/faulty/hex_colours",
    "tenth/faulty/price_tags",
    "tenth/faulty/think_tags",
    "tenth/healthy/quick_sums",
    "tenth/healthy/rloo_fading_anchor",
    "tenth/healthy/sequence_ratio_reuse",
)
"""Those whose answer has a line, of every stage; and healthy ones."""


def live_cases() -> dict[str, Callable[[], Entry]]:
    """Each chosen script with its checkup."""
    return {name: functools.partial(_in_a_process_of_its_own, name) for name in CHOSEN}


def _in_a_process_of_its_own(name: str) -> Entry:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trl.trainer.grpo_trainer", "peft", "tests.golden.live"])
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(name, there))
    child.start()
    there.close()
    try:
        found = here.recv()
    except EOFError:
        raise AssertionError(f"The checkup of {name} ended without an answer.") from None
    finally:
        child.join()
    assert isinstance(found, Entry), found
    return found


def _send(name: str, to: Connection) -> None:
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found: Entry | str = _checked(name)
    except Exception:
        found = traceback.format_exc()
    to.send(found)


def _checked(name: str) -> Entry:
    import torch
    from transformers.utils import logging

    import flatline

    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    path = SCRIPTS / f"strangers_{name}.py"
    sys.path.insert(0, str(path.parent))
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # paths are told relative to it
        trainer = importlib.import_module(path.stem).build()
        return entry_of(lambda: flatline.checkup(trainer))
