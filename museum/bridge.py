"""Releases of TRL that ask vLLM for no log-probs, and vLLM behind a server: what the stand-in drew
and what the trainer scored is handed to `flatline.Recorder`.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from museum import lab

if TYPE_CHECKING:
    from flatline.diagnosis.report import Report


Drawn = tuple[list[int], list[int], list[float]]
"""Prompt, completion and the log-probs that it was drawn with."""
SCORERS = ("_get_per_token_logps", "_get_per_token_logps_and_entropies")


class Bridge:
    """Listens to one trainer and to what samples for it."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        import flatline

        self.recorder = flatline.Recorder(folder, settings=settings)
        self.step, self.numbered = 1, 0
        """The step under way, and how many of its rollouts have a number."""
        self.generation: list[tuple[int, tuple[Drawn, float]]] = []
        """What waits to be trained: its place, what was drawn, what it was paid."""
        self.paid: list[float] = []
        self.gaps: list[float] = []
        """How far sampler and trainer are apart, for each token of the step."""
        self.engine: Any = None
        self.logps: Any = None

    def reward(self, completions: list[Any], **given: Any) -> list[float]:
        """Called once for each generation, with its rows in the order in which they were drawn."""
        paid = lab.right(completions, **given)
        self.paid = paid
        return paid

    def listen(self, trainer: Any) -> None:
        import vllm

        self.engine, self.group = vllm.ENGINES[0], trainer.num_generations
        name = next(name for name in SCORERS if hasattr(trainer, name))
        score, loss = getattr(trainer, name), trainer.compute_loss

        def scoring(*args: Any, **kwargs: Any) -> Any:
            found = score(*args, **kwargs)
            logps = found[0] if isinstance(found, tuple) else found
            logps = logps["logps"] if isinstance(logps, dict) else logps
            if logps.requires_grad:
                self.logps = logps.detach()
            return found

        def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            found = loss(model, inputs, *args, **kwargs)
            self._take()
            self._write(inputs)
            return found

        setattr(trainer, name, scoring)
        trainer.compute_loss = computing

    def _take(self) -> None:
        """A new generation, if there is one."""
        if self.engine.drawn:
            drawn, self.engine.drawn = self.engine.drawn, []
            rows = zip(drawn, self.paid, strict=True)
            self.generation = list(enumerate(rows, self.numbered))
            self.numbered += len(drawn)

    def _write(self, inputs: Any) -> None:
        """The rows of one pass."""
        rollouts, tokens = [], []
        for k, mask in enumerate(inputs["completion_mask"].bool()):
            ids = inputs["completion_ids"][k][mask].tolist()
            seen = inputs["prompt_ids"][k][inputs["prompt_mask"][k].bool()].tolist()
            at, ((prompt, sampled, logps), paid) = self._drawn_for(ids, seen)
            own = {"step": self.step, "rollout": at}
            rollouts.append(
                own
                | {
                    "group": at // self.group,
                    "reward": paid,
                    "advantage": float(inputs["advantages"][k]),
                    "weight_version": self.step - 1,
                    "as_sampled": int(ids == sampled and seen == prompt),
                }
            )
            tokens.append(
                own
                | {
                    "prompt_ids": seen,
                    "ids": ids,
                    "author": [1] * len(ids),
                    "trained": [1] * len(ids),
                    "sampler": logps if ids == sampled else None,
                    "trainer": self.logps[k][mask].tolist(),
                    "sampled_prompt_ids": prompt,
                    "sampled_ids": sampled,
                }
            )
            self.gaps += [abs(a - b) for a, b in zip(logps, tokens[-1]["trainer"], strict=False)]
        self.recorder.log_rollouts(rollouts)
        self.recorder.log_tokens(tokens)

    def end_step(self, rate: float) -> None:
        gap = sum(self.gaps) / max(len(self.gaps), 1)
        self.recorder.log_step(step=self.step, learning_rate=rate, logprob_gap=gap)
        self.step, self.numbered, self.gaps = self.step + 1, 0, []

    def _drawn_for(self, ids: list[int], seen: list[int]) -> tuple[int, tuple[Drawn, float]]:
        """TRL from 0.18 on shuffles a generation. Rows that are alike may stand for each other."""
        alike = [one for one in self.generation if one[1][0][1][: len(ids)] == ids]
        same = [one for one in alike if one[1][0][0] == seen]
        found = (same or alike or self.generation)[0]
        self.generation.remove(found)
        return found


def bridged(
    folder: Path, parts: tuple[Any, Any] | None = None, **given: Any
) -> "dict[str, Report]":
    """A recorded training in which the stand-in samples, and its diagnosis."""
    from transformers import TrainerCallback

    import flatline

    run = folder / "run"
    bridge = Bridge(run, {"num_generations": 4, "temperature": given.get("temperature", 1.0)})

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            bridge.end_step(args.learning_rate)

    parts = parts or lab.parts()
    _serve(parts[0].name_or_path)
    trainer = lab.trainer(folder, parts=parts, rewards=[bridge.reward], **given)
    trainer.add_callback(Steps())
    bridge.listen(trainer)
    trainer.train()
    bridge.recorder.close()
    return {"diagnose": flatline.diagnose(flatline.Trace.open(run))}


def _serve(model: str) -> None:
    """From 0.16 on TRL asks a server."""
    import vllm

    own = import_module("trl.trainer.grpo_trainer")
    vllm.Client.model_path = model
    if hasattr(own, "VLLMClient"):
        own.VLLMClient = vllm.Client
