"""`flatline demo`: the main job on the embedded default."""

from typing import TYPE_CHECKING

from flatline.cli import options
from flatline.cli.evaluate import Request, evaluate_model

if TYPE_CHECKING:
    from flatline.evaluate import Evaluation

_TASK = "musique"
_PROBLEMS = 128
_INTRO = """\
Is there anything here for RL to learn?

The embedded lab policy is a language model small enough for a laptop. It
answers multi-hop questions about an invented world: it searches with a
retrieval tool, then writes <think>, <cite> and <answer>. The names in these
problems were never seen in its training. Nothing is downloaded.
"""


def demo() -> None:
    """Play the embedded model on the embedded problems and say what RL could gain."""
    from rich.console import Console

    from flatline.cli.tables import evaluation_tables
    from flatline.cli.transcript import show_rollout

    console = Console(highlight=False)
    console.print(_INTRO, style="bold")
    request = _request(temperature=1.0, samples=options.LAB_SAMPLES)
    sampled = evaluate_model(request, options.LAB)
    greedy = evaluate_model(_request(temperature=0.0, samples=1), options.LAB)
    problem = sampled.problems[0]
    plays = [rollout for rollout in sampled.rollouts if rollout.problem_id == problem.id]
    worst = min(plays, key=lambda rollout: rollout.score.reward)
    console.print(f"The worst of {len(plays)} plays of the first problem:\n", style="bold")
    console.print(show_rollout(request.task, problem, worst))
    console.print()
    console.print(evaluation_tables(sampled))
    console.print(_answer(sampled, greedy))


def _request(*, temperature: float, samples: int) -> Request:
    task = options.make_task(_TASK)
    problems = options.load_problems(task, options.LAB, split="validation", limit=_PROBLEMS)
    return Request(
        task=task,
        problems=problems,
        samples=samples,
        seed=0,
        sampling={"temperature": temperature},
        limits={},
        max_batch=64,
        policy={"device": None, "chat_template": None},
        about={"task": _TASK, "datasets": options.LAB},
    )


def _answer(sampled: "Evaluation", greedy: "Evaluation") -> str:
    """What the tables mean for someone who is about to train."""
    reward, best = sampled.parts["combined"].value, greedy.parts["combined"].value
    first, last = sampled.pass_at_k[1].value, sampled.pass_at_k[sampled.samples].value
    return f"""
What this says
- Baseline {reward:.2f}: neither hopeless nor solved.
- {first:.0%} of the plays are right, but {last:.0%} of the problems are solved by one of
  {sampled.samples} plays: the policy can do it and is careless. RL can mend that.
- Plays of one problem differ by {sampled.group_std.value:.2f} (std): GRPO has something to compare.
- Always taking the likeliest token gives {best:.2f}: a mark for training to aim at.

Next
  flatline train musique                         let RL mend it: two minutes
  flatline evaluate musique --greedy --show 2    other settings, transcripts
  flatline evaluate gsm8k                        the single-step control
  flatline tasks check musique                   is the scoring right?
"""
