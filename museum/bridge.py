"""TRL 0.15 to 0.18 lacks methods that `attach` listens to; `watch` hears neither the temperature that
was sampled at nor an engine beside the model. What was drawn and what the trainer scored is handed
to `flatline.Recorder` instead.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from museum import lab

if TYPE_CHECKING:
    from flatline.diagnosis import Report


class Ear:
    """What transformers' `generate` drew in the latest pass, as flatline hears it."""

    def __init__(self, trainer: Any) -> None:
        from flatline.live.hooks import Guard
        from flatline.live.trl.sampler import drawn, hearing

        self.drawn: list[tuple[list[int], list[int], list[float]]] = []
        prepare = trainer._prepare_inputs

        def preparing(inputs: Any) -> Any:
            with hearing(trainer, Guard()) as calls:
                found = prepare(inputs)
            pairs = zip(found["completion_ids"], found["completion_mask"].bool(), strict=True)
            rows = drawn(calls, [ids[mask].numpy() for ids, mask in pairs])
            self.drawn = [(r.prompt_ids.tolist(), r.ids.tolist(), r.logps.tolist()) for r in rows]
            return found

        trainer._prepare_inputs = preparing


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
    """A recorded training, and its diagnosis. With `use_vllm` the stand-in samples."""
    from transformers import TrainerCallback

    import flatline

    run = folder / "run"
    bridge = Bridge(run, {"num_generations": 4, "temperature": given.get("temperature", 1.0)})

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            bridge.recorder.log_step(step=bridge.step, learning_rate=args.learning_rate)
            bridge.step, bridge.rollout = bridge.step + 1, 0

    parts = lab.parts()
    if given.get("use_vllm"):
        _serve(parts[0].name_or_path)
    trainer = lab.trainer(folder, parts=parts, rewards=[bridge.reward], **given)
    trainer.add_callback(Steps())
    bridge.listen(trainer, _engine() if given.get("use_vllm") else Ear(trainer))
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


def _engine() -> Any:
    import vllm

    return vllm.ENGINES[0]
