"""A pytest plugin for `trl_own_tests.py`: stand-ins for the hub, and flatline around `train`.

Every causal model of the hub is stood in for by one tiny random Qwen2, every classifier by another,
the data by a few lines of the same shape; vision models by nothing. What is asked of them is that
TRL trains, not what it trains.
"""

import functools
import hashlib
import json
import os
import tempfile
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from datasets import Dataset, DatasetDict, IterableDatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from trl import GRPOTrainer

import flatline
from flatline.errors import FlatlineError
from flatline.hypotheses.base import ALARMS
from flatline.trace.writer import MemorySink

# By its path: TRL's own tests are a package `tests` as well.
_found = spec_from_file_location("tiny", Path(__file__).parents[1] / "tests" / "tiny.py")
assert _found is not None and _found.loader is not None
tiny = module_from_spec(_found)
_found.loader.exec_module(tiny)

HUB = ("trl-internal-testing/", "Qwen/", "HuggingFaceTB/")
LINES = [f"Line {i} of the poem is" for i in range(19)]
STEMS = Path(tempfile.mkdtemp(prefix="flatline-stand-ins-"))
SEED = 3
now: dict[str, Any] = {"test": "", "training": 0}


def tell(**facts: Any) -> None:
    with open(os.environ["FLATLINE_TOLD"], "a") as file:
        file.write(json.dumps({**now, **facts}) + "\n")


# -- flatline around every training


def around(train: Any) -> Any:
    mode = os.environ["FLATLINE_MODE"]

    @functools.wraps(train)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        now["training"] += 1
        sink, attachment = MemorySink(), None
        if mode == "attach":
            attachment = flatline.attach(self, sink)
        if mode == "checkup":
            look_at(self)
        torch.manual_seed(SEED)
        result = train(self, *args, **kwargs)
        tell(weights=fingerprint(self.model))
        if attachment is not None:
            if attachment.failed:
                tell(kind="stopped", finding="recording")
            tell_findings(flatline.diagnose(sink.trace()))
        return result

    return wrapped


def look_at(trainer: Any) -> None:
    try:
        tell_findings(flatline.checkup(trainer))
    except FlatlineError as error:
        tell(kind="refused", finding=str(error).splitlines()[0])


def tell_findings(report: Any) -> None:
    for one in report.findings:
        if "defect of flatline" in one.text:
            tell(kind="defect", finding=f"{one.hypothesis}: {one.text}")
        elif one.level in ALARMS:
            tell(kind=one.level.value, finding=f"{one.hypothesis}: {one.text}")


def fingerprint(model: Any) -> str:
    found = hashlib.blake2b(digest_size=16)
    for weight in model.parameters():
        found.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def pytest_runtest_logstart(nodeid: str) -> None:
    now.update(test=nodeid.partition("::")[2], training=0)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        why = str(report.longrepr).splitlines()[-1] if report.longrepr else ""
        tell(outcome=report.outcome, **({"why": why[:200]} if report.outcome == "failed" else {}))


# -- stand-ins


def stand_in(name: str) -> str:
    """The folder of what stands in for a model of the hub."""
    vision = "ConditionalGeneration" in name or "VL" in name
    kind = "vision" if vision else "classifier" if "SequenceClassification" in name else "causal"
    folder = STEMS / kind
    if not folder.exists():
        {"vision": save_vision, "classifier": save_classifier, "causal": save_causal}[kind](folder)
    return str(folder)


def save_causal(folder: Path) -> None:
    tokenizer = tiny.tokenizer_with()
    model = tiny.tiny_model(vocab=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_classifier(folder: Path) -> None:
    tokenizer = tiny.tokenizer_with()
    config = tiny.tiny_model(vocab=len(tokenizer)).config
    config.num_labels, config.pad_token_id = 1, tokenizer.pad_token_id
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.Qwen2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_vision(folder: Path) -> None:
    raise OSError("no stand-in for a vision model")


def locally(original: Any) -> Any:
    """A `from_pretrained` that finds the stand-in where a model of the hub is asked for."""

    @functools.wraps(original.__func__)
    def wrapper(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        if str(name).startswith(HUB):
            kwargs.pop("revision", None)
            name = stand_in(str(name))
        return original.__func__(cls, name, *args, **kwargs)

    return classmethod(wrapper)


def load_dataset(path: str, name: str = "", *, split: str | None = None, streaming: bool = False):
    prompts = (
        LINES
        if name.startswith("standard")
        else [[{"role": "user", "content": line}] for line in LINES]
    )
    rows = [{"prompt": prompt} for prompt in prompts]
    parts = {"train": Dataset.from_list(rows[:17]), "test": Dataset.from_list(rows[17:])}
    if streaming:
        parts = {key: part.to_iterable_dataset() for key, part in parts.items()}
    if split is not None:
        return parts[split]
    return IterableDatasetDict(parts) if streaming else DatasetDict(parts)


def _unasked(name: str) -> Any:
    """Tests of another version ask for packages that the installed one has no question for."""
    if name.startswith("is_"):
        return lambda: False
    raise AttributeError(name)


def pytest_configure(config: pytest.Config) -> None:
    vars(import_module("trl.import_utils"))["__getattr__"] = _unasked
    datasets.load_dataset = load_dataset
    autos = [getattr(transformers, name) for name in dir(transformers) if name.startswith("Auto")]
    kinds = [one for one in autos if "from_pretrained" in vars(one)]
    for kind in (
        *kinds,
        transformers.PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        ProcessorMixin,
    ):
        kind.from_pretrained = locally(vars(kind)["from_pretrained"])
    GRPOTrainer.train = around(GRPOTrainer.train)
