"""TRL 0.15 to 0.18 with an engine of its own: `attach` lacks methods there, and `watch` hears only
the model that is trained. What the engine drew and what the trainer scored is recorded instead."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from museum import lab

if TYPE_CHECKING:
    from flatline.diagnosis import Report


class Bridge:
    """Listens to one trainer and to the engine that it made."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        import flatline

        self.recorder = flatline.Recorder(folder, settings=settings)
        self.step, self.rollout = 1, 0
        self.paid: list[float] = []
        self.logps: Any = None

    def reward(self, completions: list[Any], **given: Any) -> list[float]:
        self.paid = lab.right(completions, **given)
        return self.paid

    def listen(self, trainer: Any, engine: Any) -> None:
        score, loss = trainer._get_per_token_logps, trainer.compute_loss

        def scoring(model: Any, *args: Any, **kwargs: Any) -> Any:
            found = score(model, *args, **kwargs)
            if found.requires_grad:
                self.logps = found.detach()
            return found

        def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            found = loss(model, inputs, *args, **kwargs)
            self.write(inputs, engine, trainer.num_generations)
            return found

        trainer._get_per_token_logps, trainer.compute_loss = scoring, computing

    def write(self, inputs: Any, engine: Any, group: int) -> None:
        """One pass, its rows in the engine's order."""
        rollouts, tokens = [], []
        drawn, engine.drawn = engine.drawn, []
        for k, (prompt, sampled, logps) in enumerate(drawn):
            mask = inputs["completion_mask"][k].bool()
            ids = inputs["completion_ids"][k][mask].tolist()
            seen = inputs["prompt_ids"][k][inputs["prompt_mask"][k].bool()].tolist()
            own = {"step": self.step, "rollout": self.rollout}
            same = ids == sampled and seen == prompt
            rollouts.append(
                own
                | {
                    "group": self.rollout // group,
                    "reward": self.paid[k],
                    "advantage": float(inputs["advantages"][k]),
                    "weight_version": self.step - 1,
                    "prompt_tokens": len(seen),
                    "completion_tokens": len(ids),
                    "as_sampled": int(same),
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
            self.rollout += 1
        self.recorder.log_rollouts(rollouts)
        self.recorder.log_tokens(tokens)


def bridged(folder: Path, **given: Any) -> "dict[str, Report]":
    """A recorded training of a trainer that samples with vLLM, and its diagnosis."""
    import vllm
    from transformers import TrainerCallback

    import flatline

    run = folder / "run"
    bridge = Bridge(run, {"num_generations": 4, "temperature": given.get("temperature", 1.0)})

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            bridge.recorder.log_step(step=bridge.step, learning_rate=args.learning_rate)
            bridge.step, bridge.rollout = bridge.step + 1, 0

    parts = lab.parts()
    vllm.Client.model_path = parts[0].name_or_path
    own = import_module("trl.trainer.grpo_trainer")
    if hasattr(own, "VLLMClient"):  # 0.16 and later ask a server
        own.VLLMClient = vllm.Client
    given = {"parts": parts, "rewards": [bridge.reward], "use_vllm": True, **given}
    trainer = lab.trainer(folder, **given)
    trainer.add_callback(Steps())
    bridge.listen(trainer, vllm.ENGINES[0])
    trainer.train()
    bridge.recorder.close()
    return {"diagnose": flatline.diagnose(flatline.Trace.open(run))}
