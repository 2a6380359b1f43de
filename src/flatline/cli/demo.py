"""`flatline demo`: the mystery of the flat reward, from the symptom to the proof."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from flatline.config import RunConfig
from flatline.errors import not_installed

if TYPE_CHECKING:
    from flatline.diagnosis.report import Report
    from flatline.training.run import Result

FAULT = "verifiers-0.1.3"
"""The defects of a real stack, all at once."""
CONTROL_FAULT = "mask-as-attention"
"""The one of them that a single-step task can have."""
BETA = 0.04
"""Weight of the KL penalty that the user had."""
SHOWN = 6
"""Steps of a run that are printed."""

ALONE = {
    "mask-as-attention": ("H09", "+0.196 [+0.045, +0.347], n = 3 seeds"),
    "generation-prompt-missing+tool-schema-missing": (
        "H10",
        "+0.056 [+0.001, +0.112], n = 4 seeds",
    ),
    "sorted-with-hop-factor": ("H44", "+0.034 [-0.044, +0.112], n = 6 seeds"),
}
"""Defects -> the hypothesis that they are taken away for, and what that gave in the journal of this
story, examples/journal. The demo itself takes all of them away at once."""

_INTRO = (
    "Someone trained a language model with GRPO on multi-hop questions with a search tool. The "
    "reward stayed at its baseline for weeks. The KL divergence reached 1e5 and the gradients "
    "exploded; without the KL penalty the numbers looked calm, and the reward stayed flat all the "
    "same. A control on GSM8K improved, so the library was declared sound, and the hunt went on "
    "among hyperparameters.\n\n"
    "This is that story in miniature, on this machine: a small language model that ships with "
    "flatline, an invented world to ask about, TRL's GRPO, and the defects of the library version "
    "that was used (--fault verifiers-0.1.3), planted on purpose. Nothing is downloaded. It takes "
    "a few minutes."
)

_CHECKUP = (
    "flatline checks the live trainer with one batch: what was sampled, what is trained on, and "
    "whether the two agree. The same as `flatline checkup musique --kl-beta 0.04 --fault "
    "verifiers-0.1.3`.\n"
)

_WHY = (
    "The trainer passed its loss mask to the model as attention mask. The prompt and what the "
    "tool returned carry no loss, so the model that was being trained could not see them: it was "
    "asked how likely its words are after nothing at all, and was pushed towards words that need "
    "no question. The reference was as blind, but the two soon part on text that neither would "
    "write, hence the KL. A beta of 0 hid that symptom and left the cause. The suspects of the "
    "time (token masks, the KL formula, LoRA) were innocent; the checkup says by which "
    "measurement."
)

Folder = Annotated[Path, typer.Option(help="Where the runs are kept.")]
Steps = Annotated[int, typer.Option(min=6, help="Optimizer steps of a run.")]
Problems = Annotated[int, typer.Option(min=8, help="Held-out problems that a run is judged on.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """Where the demo prints to and keeps its runs."""

    console: Console
    folder: Path
    steps: int
    problems: int

    def config(self, name: str) -> RunConfig:
        return RunConfig(
            kl_beta=BETA,
            max_steps=self.steps,
            eval_limit=self.problems,
            output_dir=str(self.folder / name),
        )

    def chapter(self, title: str, text: str) -> None:
        self.console.print()
        self.console.print(Rule(title, align="left", style="bold"))
        self.console.print(text)


def demo(
    output_dir: Folder = Path("runs/demo"), steps: Steps = 20, problems: Problems = 256
) -> None:
    """Solve the mystery of the flat reward on the embedded model: break, find, fix, prove."""
    _refuse_half_a_story()
    console = Console(highlight=False)
    story = _Story(console=console, folder=output_dir, steps=steps, problems=problems)
    console.print(_INTRO)
    broken = _broken(story)
    _control(story)
    report = _checkup(story)
    _diagnosis(story)
    mended = _mended(story)
    _answer(story, broken, mended, report)
    _page(story)


def _refuse_half_a_story() -> None:
    """It takes minutes to the page at its end, which needs the extra `pages`."""
    for name in ("trl", "peft", "jinja2"):
        if find_spec(name) is None:
            raise not_installed("The demo", ModuleNotFoundError(name=name))


def _broken(story: _Story) -> "Result":
    story.chapter("1. The symptom", f"Multi-hop questions, LoRA, beta {BETA}, defects planted.\n")
    result = _train(replace(story.config("broken"), fault=FAULT))
    story.console.print(_curve(result))
    story.console.print(
        f"\nHeld-out reward {_score(result, 0)} before and {_score(result, -1)} after: "
        f"{result.gain}.\nKL and gradients explode, and nothing is learnt."
    )
    return result


def _control(story: _Story) -> None:
    story.chapter("2. The control that misled", "Single-step word problems, the same defect.\n")
    config = replace(
        story.config("control"),
        task="gsm8k",
        kl_beta=0.0,
        learning_rate=1e-3,  # where the healthy control learns
        fault=CONTROL_FAULT,
        max_steps=2 * story.steps,
    )
    result = _train(config)
    first, last = result.scores[0], result.scores[-1]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("held out", "before", "after", "gain"):
        table.add_column(name)
    for part in ("format", "exact_match"):
        values = (f"{score.parts[part]:.3f}" for score in (first, last))
        table.add_row(part, *values, str(last.since(first, part)))
    story.console.print(table)
    story.console.print(
        "\nFormat can be learnt without seeing the question, answers cannot. Anyone who watches a "
        "sum of both sees a rise and declares the library sound. A positive control must need "
        "the pathway that is under suspicion (`flatline explain H00`)."
    )


def _checkup(story: _Story) -> "Report":
    from flatline.diagnosis.checkup import checkup
    from flatline.training.trainer import built_aside

    story.chapter("3. The checkup", _CHECKUP)
    config = replace(story.config("checkup"), fault=FAULT)
    with built_aside(config) as built, Console(stderr=True).status("Checking") as status:
        report = checkup(built, on_probe=lambda one: status.update(f"{one.id} {one.name}"))
    story.console.print(report)
    return report


def _diagnosis(story: _Story) -> None:
    from flatline.diagnosis.report import diagnose, save
    from flatline.trace import Trace

    run = story.folder / "broken"
    story.chapter("4. The recorded run says the same", f"`flatline diagnose {run}`:\n")
    report = diagnose(Trace.open(run), name=str(run))
    save(report, run)
    story.console.print(report.summary, markup=False)


def _mended(story: _Story) -> "Result":
    story.chapter(
        "5. The proof", "Take all the planted defects out, change nothing else, and train again.\n"
    )
    result = _train(story.config("mended"))
    story.console.print(_curve(result))
    story.console.print(
        f"\nHeld-out reward {_score(result, 0)} before and {_score(result, -1)} after: "
        f"{result.gain}."
    )
    return result


def _answer(story: _Story, broken: "Result", mended: "Result", report: "Report") -> None:
    effect = mended.scores[-1].since(broken.scores[-1])
    causes = ", ".join(f"{one.hypothesis} {one.name}" for one in report.causes) or "none found"
    cleared = ", ".join(sorted(f.hypothesis for f in report.findings if f.level == "ok"))
    story.chapter(
        "The answer",
        f"{report.answer.headline}\n\n"
        f"{_what_gave_what(str(effect), len(mended.scores[-1].problems))}\n\n"
        f"Cause: {causes}.\nRuled out: {cleared}.\n\n{_WHY}\n\n"
        f"The runs are in {story.folder}. To see more:\n"
        f"  flatline show {story.folder}/broken --step 1 --rollout 0\n"
        f"  flatline diagnose {story.folder}/mended\n"
        "  flatline explain H09\n"
        f"  flatline ui {story.folder}",
    )


def _what_gave_what(effect: str, questions: int) -> str:
    """The gain of the mended run is that of all defects together, not of the one named first."""
    alone = [f"  {code} ({names}): {gave}" for names, (code, gave) in ALONE.items()]
    return "\n".join(
        [
            f"With all of `--fault {FAULT}` taken out and nothing else changed, the reward on the "
            f"same {questions} held-out questions, with the same random numbers, changes by "
            f"{effect}. That is one seed, and what all the defects cost together. Taken out alone, "
            "with the others left in, in 30 steps on matched seeds (examples/journal):",
            *alone,
        ]
    )


def _page(story: _Story) -> None:
    """The story to look at and to send on: the broken run, with the fixed one laid over it."""
    from flatline.cli.report import written

    runs = story.folder / "broken", story.folder / "mended"
    said = written(runs[0], story.folder / "report.html", runs[1])
    story.console.print(f"\n{said}", markup=False, soft_wrap=True)


def _train(config: RunConfig) -> "Result":
    from transformers.utils import logging

    from flatline.training.run import train

    logging.disable_progress_bar()  # ours says the same
    return train(config)


def _curve(result: "Result") -> Table:
    """A few steps of a run: the first three, where most happens, and some to the end."""
    from flatline.trace import Trace

    steps = Trace.open(result.output_dir).steps
    names = ("reward", "kl", "kl_max", "grad_norm")
    columns = {name: steps[name] for name in names}
    rows = [i for i, step in enumerate(steps["step"]) if step > 0]
    rest = rows[3:]
    spread = [rest[round(i * (len(rest) - 1) / (SHOWN - 4))] for i in range(SHOWN - 3)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("step", "training reward", "KL", "KL of the worst token", "gradient norm"):
        table.add_column(title, justify="right")
    for i in rows[:3] + spread:
        cells = (f"{columns[name][i]:.3g}" for name in names)
        table.add_row(str(int(steps["step"][i])), *cells)
    return table


def _score(result: "Result", which: int) -> str:
    return f"{result.scores[which].reward.value:.3f}"
