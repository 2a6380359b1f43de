"""Tables of what it took: seconds, memory, and the engines."""

from collections.abc import Iterator
from statistics import median

from tables_learning import Json, Rows, curve, mean, table

SHOWN_PROBE = 1.0
"""Seconds from which on a probe is named."""
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


def ran(kept: Json) -> Rows:
    """Stages by the log: `second NAME rc CODE SECONDS s`."""
    lines = [line.split() for line in kept["log"]]
    ended = [words for words in lines if len(words) > 4 and words[2] == "rc"]
    rows = (
        f"{words[1]} | {float(words[4]):.0f} | {words[3]} | {' '.join(words[6:])}"
        for words in ended
        if not words[1].startswith("diagnose")
    )
    return table("stage | seconds | exit code | ended at", rows)


def warmstart(kept: Json) -> Rows:
    found = kept["warmstart"]
    loss = found["loss"]
    rows = (
        f"problems | {found['problems']}",
        *(f"left out: {why} | {count}" for why, count in found["left_out"].items()),
        f"gold plays | {found['plays']['count']}",
        f"their reward | {found['plays']['reward']:.3f}",
        f"steps | {found['steps']}",
        f"loss, nat a token | {loss['first']:.2f} to {loss['last']:.3f}",
        f"seconds of training | {found['seconds']:.0f}",
    )
    return table("|", rows)


def engine(kept: Json) -> Rows:
    return [str(kept["tables"]["engine-96"]).strip()]


def recorder(kept: Json) -> Rows:
    return [str(kept["tables"]["recorder"]).strip()]


def checkup_time(kept: Json) -> Rows:
    stages, _, probes, levels = str(kept["tables"]["checkup-healthy"]).strip().split("\n\n")
    yield stages
    yield ""
    yield from table("probe | seconds", _slow(probes))
    yield ""
    told = dict(one.split() for one in levels.split(";"))
    fine = [code for code, level in told.items() if level == "ok"]
    unknown = [code for code, level in told.items() if level == "unknown"]
    fired = ", ".join(told.keys() - {*fine, *unknown}) or "none"
    yield (
        f"Of {len(told)} hypotheses {len(fine)} are ok, "
        f"{len(unknown)} unknown ({', '.join(unknown)}), {fired} fired."
    )


def _slow(table: str) -> Iterator[str]:
    for line in table.splitlines()[2:]:
        name, seconds = (cell.strip() for cell in line.strip("|").split("|"))
        if float(seconds) >= SHOWN_PROBE:
            yield f"{name} | {seconds}"


def vllm(kept: Json) -> Rows:
    found = kept["vllm"]
    yield from _gaps("vLLM", found)
    yield ""
    direct = (
        f"{name} | {one['mean_abs']:.3f} | {one['p99_abs']:.2f} | {one['max_abs']:.2f} "
        f"| {one['sequence_ratio_min']:.2f} to {one['sequence_ratio_max']:.2f} | {one['tokens']}"
        for name, one in found["direct"].items()
    )
    head = "transformers | mean gap, nat | 99 % | largest | ratio of a sequence | tokens"
    yield from table(head, direct)
    yield ""
    rows = (f"{name} | {seconds} | {code}" for name, code, seconds in _parts(found))
    yield from table("part | seconds | exit code", rows)
    if "zero3" in found:
        yield ""
        yield f"The parts named `zero` end with `{found['zero3']}`."


def zero(kept: Json) -> Rows:
    found = kept["zero"]
    yield from _gaps(f"DeepSpeed {found['version']}, ZeRO-3", found)
    yield ""
    rows = (
        f"{name} | {seconds} | {code} | {found['said'].get(name, '')}"
        for name, code, seconds in _parts(found)
    )
    yield from table("part | seconds | exit code | said", rows)


def _gaps(engine: str, found: Json) -> Rows:
    """How far sampler and trainer are apart."""
    runs = (
        f"{name}, {len(run['steps']['step'])} steps | "
        f"{' '.join(f'{gap:.2g}' for gap in run['steps']['logprob_gap'])} | "
        f"{max(run['steps']['logprob_gap_max']):.2g} | {run['diagnosis']['summary']}"
        for name, run in found["runs"].items()
    )
    head = f"trained with {engine} | mean gap, step by step, nat | largest | diagnose"
    return table(head, runs)


def _parts(found: Json) -> Iterator[list[str]]:
    """Name, exit code and seconds."""
    return (line.split() for line in found["log"] if not line.startswith("gaps "))


def costs(kept: Json) -> Rows:
    arms = ("healthy", "mask", "preset")
    names = [n for n, run in kept["runs"].items() if run["arm"] in arms and _began(kept, n)]
    many = WORDS[len(names)]
    head = "| s a step, median | sampling | scoring | backward | steps a minute | steps an hour"
    yield from table(head, (_pace(kept, f"{many} at once", names), *_others(kept)))
    yield ""
    begin, end = _undisturbed(kept, names)
    during = [row for row in kept["gpu"] if begin <= row[0] < end]
    busy = mean([row[1] for row in during])
    memory = max(row[2] for row in during)
    rows = (
        f"peak memory of one MuSiQue training, allocated | {_most(kept, names):.1f} GiB",
        f"most memory of the GPU in use, {many} trainings | {memory:.1f} GiB",
        f"samples of `nvidia-smi` with the GPU busy, {many} trainings | {busy:.0f} %",
        f"most memory in use while runs shared the GPU | {_shared_gib(kept)} GiB",
        f"minutes, from the start to the last stage | {int(kept['log'][-1].split()[0]) / 60:.0f}",
    )
    yield from table("| measured", rows)


def _others(kept: Json) -> Iterator[str]:
    groups = {
        "one, beside GSM8K and vLLM": ["random-reward-0"],
        "GSM8K, the same time": ["gsm8k-healthy", "gsm8k-mask"],
    }
    for title, names in groups.items():
        if all(name in kept["runs"] for name in names):
            yield _pace(kept, title, names)


def _pace(kept: Json, title: str, names: list[str]) -> str:
    columns = ("seconds", "seconds_sampling", "seconds_scoring", "seconds_backward")
    all_of_it, *parts = (
        median(value for name in names for value in curve(kept, name, column)) for column in columns
    )
    rate = len(names) * 60 / all_of_it
    cells = " | ".join(f"{value:.1f}" for value in parts)
    return f"{title} | {all_of_it:.1f} | {cells} | {rate:.1f} | {60 * rate:.0f}"


def _undisturbed(kept: Json, names: list[str]) -> tuple[int, int]:
    """Seconds from the start of the last of these trainings until anything begins or ends."""
    begin = max(_second(kept, f"{name} begins") for name in names)
    events = [line.split() for line in kept["log"] if line.endswith(" begins") or " rc " in line]
    return begin, min(int(words[0]) for words in events if int(words[0]) > begin)


def _began(kept: Json, name: str) -> bool:
    """Whether it was trained in this visit: a file may hold pairs of an earlier one too."""
    return any(line.endswith(f" {name} begins") for line in kept["log"])


def _most(kept: Json, names: list[str]) -> float:
    return max(float(kept["runs"][name]["peak_gib"]) for name in names)


def _second(kept: Json, event: str) -> int:
    """Seconds since the start at which the log says this."""
    return next(int(line.split()[0]) for line in kept["log"] if line.endswith(event))


def _shared_gib(kept: Json) -> str:
    """From `SECOND pool is done; peak N GiB`."""
    return next(line.split()[-2] for line in kept["log"] if "pool is done" in line)
