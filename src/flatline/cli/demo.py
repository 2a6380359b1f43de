"""`flatline demo`: the mystery of the flat reward, from the symptom to the proof, in one sitting."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from flatline.config import RunConfig

if TYPE_CHECKING:
    from flatline.diagnose import Report
    from flatline.training.run import Result

FAULT = "verifiers-0.1.3"
"""The defects of a real stack, all at once."""
BETA = 0.04
SHOWN_STEPS = 5
"""Lines of a run that are printed."""

Folder = Annotated[Path, typer.Option(help="Where the runs are kept.")]

_INTRO = """\
Someone trained a language model with GRPO on multi-hop questions with a search tool. The reward
stayed at its baseline for weeks. The KL divergence reached 1e5 and gradients exploded; without the
KL penalty the numbers looked calm, and the reward stayed flat all the same. A control on GSM8K
improved, so the library was declared sound, and the hunt went on among hyperparameters.

This is that story in miniature, on this machine: a small language model that ships with flatline,
an invented world to ask about, TRL's GRPO, and the defects of the library version they used
(--fault verifiers-0.1.3), planted on purpose. Nothing is downloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """Where the demo prints to and keeps its runs."""

    console: Console
    folder: Path
    steps: int
    eval_limit: int

    def config(self, name: str) -> RunConfig:
        return RunConfig(
            kl_beta=BETA,
            max_steps=self.steps,
            eval_limit=self.eval_limit,
            output_dir=str(self.folder / name),
        )

    def chapter(self, title: str, text: str) -> None:
        self.console.print()
        self.console.print(Rule(title, align="left", style="bold"))
        self.console.print(text)


def demo(output_dir: Folder = Path("runs/demo"), steps: int = 20, eval_limit: int = 256) -> None:
    """Solve the mystery of the flat reward on the embedded model: break, find, mend, prove."""
    story = _Story(
        console=Console(highlight=False),
        folder=output_dir,
        steps=steps,
        eval_limit=eval_limit,
    )
    story.console.print(_INTRO)
    broken = _break(story)
    _control(story)
    report = _look(story)
    mended = _mend(story)
    _explain(story, broken, mended, report)


def _break(story: _Story) -> "Result":
    story.chapter(
        "1. The symptom",
        f"GRPO on MuSiQue-like questions, LoRA, beta {BETA}, with the defects planted.\n",
    )
    result = _train(replace(story.config("broken"), fault=FAULT))
    story.console.print(_curve(result))
    story.console.print(
        f"Held-out reward: {_score(result, 0)} before, {_score(result, -1)} after. "
        f"Gain {result.gain}.\nThe KL and the gradients explode, and nothing is learnt."
    )
    return result


def _control(story: _Story) -> None:
    story.chapter(
        "2. The control that misled them",
        "The same defects, on single-step word problems (GSM8K-like), beta 0.\n",
    )
    config = replace(
        story.config("control"),
        task="gsm8k",
        kl_beta=0.0,
        learning_rate=1e-3,
        fault="mask-as-attention",
        max_steps=2 * story.steps,
    )
    result = _train(config)
    story.console.print(_curve(result, kl=False))
    first, last = result.scores[0], result.scores[-1]
    story.console.print(
        f"Format, held out: {first.parts['format']:.3f} before, {last.parts['format']:.3f} after "
        f"(gain {last.since(first, 'format')}).\n"
        f"Right answers: {first.parts['exact_match']:.3f} before, "
        f"{last.parts['exact_match']:.3f} after (gain {last.since(first, 'exact_match')}).\n"
        "Something rises, so the library seems sound. But format needs no question: a control must\n"
        "need the pathway that is under suspicion."
    )


def _look(story: _Story) -> "Report":
    from flatline.checkup import checkup
    from flatline.cli.findings import print_report
    from flatline.training.trainer import build

    story.chapter(
        "3. The checkup",
        "flatline looks at the live trainer with one batch: what it samples, what it trains on, and\n"
        "whether the two agree. (The same as `flatline checkup musique --fault verifiers-0.1.3`.)\n",
    )
    built = build(replace(story.config("checkup"), fault=FAULT))
    report = checkup(built)
    print_report(report, console=story.console)
    return report


def _mend(story: _Story) -> "Result":
    story.chapter("4. The proof", "Mend what was found, change nothing else, and train again.\n")
    result = _train(story.config("mended"))
    story.console.print(_curve(result))
    story.console.print(
        f"Held-out reward: {_score(result, 0)} before, {_score(result, -1)} after. "
        f"Gain {result.gain}."
    )
    return result


def _explain(story: _Story, broken: "Result", mended: "Result", report: "Report") -> None:
    effect = mended.scores[-1].since(broken.scores[-1])
    first = report.causes[0] if report.causes else None
    cause = f"{first.hypothesis} {first.name}" if first else "nothing that was found"
    others = ", ".join(f.hypothesis for f in report.alarms if f is not first) or "none"
    story.chapter(
        "The answer",
        f"Mended against broken, same {len(mended.scores[-1].problems)} held-out questions, same "
        f"random numbers: {effect}.\n\n"
        f"Cause: {cause}. Other alarms: {others}.\n\n"
        "The trainer passed its loss mask to the model as attention mask. Prompt and tool output\n"
        "carry no loss, so the model that was trained could not see them: it was asked how likely\n"
        "its words are after nothing, and pushed towards words that need no question. The reference\n"
        "was as blind, but the two drift apart on text that neither would ever write, hence the KL.\n"
        "Setting beta to 0 hid the symptom. Masks, KL formula and LoRA, the suspects of the time,\n"
        "were innocent; the checkup says by which measurement.\n\n"
        f"Runs are in {story.folder}. Look further:\n"
        f"  flatline diagnose {story.folder}/broken           the same from the recorded run alone\n"
        f"  flatline show {story.folder}/broken --step 1 --rollout 0\n"
        "  flatline explain H09\n"
        "  flatline checkup musique                     a healthy setup, for comparison",
    )


def _train(config: RunConfig) -> "Result":
    from flatline.training.run import train

    return train(config)


def _curve(result: "Result", *, kl: bool = True) -> Table:
    """A few steps of a run, first and last among them."""
    lines = [line for line in result.log if "grad_norm" in line and "reward" in line]
    last = len(lines) - 1
    chosen = sorted({round(i * last / (SHOWN_STEPS - 1)) for i in range(SHOWN_STEPS)})
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns: list[tuple[str, Callable[[dict[str, float]], str]]] = [
        ("reward", lambda line: f"{line['reward']:.3f}"),
        ("gradient norm", lambda line: f"{line['grad_norm']:.3g}"),
    ]
    if kl:
        columns.append(("KL", lambda line: f"{line['kl']:.3g}"))
    table.add_column("step", justify="right")
    for name, _ in columns:
        table.add_column(name, justify="right")
    for i in chosen:
        table.add_row(str(i + 1), *(show(lines[i]) for _, show in columns))
    return table


def _score(result: "Result", which: int) -> str:
    return f"{result.scores[which].reward.value:.3f}"
