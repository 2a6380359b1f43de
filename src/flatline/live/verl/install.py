"""Puts the hooks into verl, in whichever of its processes this is.

verl builds its trainer and its workers itself, in processes of their own; so their classes are
asked to tell when one is ready, and that one is listened to.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from flatline.live.hooks import Guard, on_class
from flatline.live.verl.sampler import SamplerEar
from flatline.live.verl.trainer import ASK, TrainerEar
from flatline.live.verl.worker import WorkerEar
from flatline.trace.announce import say

FOLDER = "FLATLINE_RUN"
"""Environment variable that names the run's folder."""
EAR = "_flatline"
PLACES = {
    "trainer": ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", "init"),
    "worker": ("verl.workers.engine_workers", "ActorRolloutRefWorker", "init_model"),
    "client": ("verl.workers.rollout.llm_server", "LLMServerClient", "generate"),
}


def install() -> bool:
    """Whether the run will be recorded; where it will not, that is said and verl goes on."""
    folder = os.environ.get(FOLDER)
    if not folder:
        say(f"nothing is recorded: name the run's folder, as in {FOLDER}=runs/x.")
        return False
    try:
        kinds = {name: getattr(import_module(at), kind) for name, (at, kind, _) in PLACES.items()}
        register, once = _registering()
        hear(kinds, folder, lambda method: register(dispatch_mode=once)(method))
    except (ImportError, AttributeError) as error:
        say(f"nothing is recorded: flatline knows verl 0.9, and this is another: {error}")
        return False
    return True


def _registering() -> tuple[Any, Any]:
    decorator = import_module("verl.single_controller.base.decorator")
    return decorator.register, decorator.Dispatch.ONE_TO_ALL


def hear(kinds: dict[str, Any], folder: str, asked: Callable[[Any], Any]) -> None:
    """Listen to what these classes make. `asked` lets the trainer call a worker's method."""
    guard = Guard()

    def begun(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(trainer, *args, **kwargs)
        guard(_listen_to_trainer, trainer, os.path.abspath(folder))
        return result

    def built(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(worker, *args, **kwargs)
        if getattr(worker, "actor", None) is not None:
            guard(_listen_to_worker, worker, guard)
        return result

    def heard(worker: Any) -> dict[str, Any]:
        ear = vars(worker).get(EAR)
        return {"rows": [], "weights": [], "updates": 0, "sent": {}} if ear is None else ear.heard()

    heard.__name__ = heard.__qualname__ = ASK
    on_class(kinds["trainer"], PLACES["trainer"][2], begun)
    on_class(kinds["worker"], PLACES["worker"][2], built)
    setattr(kinds["worker"], ASK, asked(heard))
    ear = SamplerEar(guard)

    async def generate(original: Callable[..., Any], client: Any, *args: Any, **kw: Any) -> Any:
        return await ear.generate(lambda *a, **k: original(client, *a, **k), *args, **kw)

    on_class(kinds["client"], PLACES["client"][2], generate)


def _listen_to_trainer(trainer: Any, folder: str) -> None:
    config = import_module("omegaconf").OmegaConf.to_container(trainer.config, resolve=True)
    setattr(trainer, EAR, TrainerEar(trainer, folder, config))


def _listen_to_worker(worker: Any, guard: Guard) -> None:
    setattr(worker, EAR, WorkerEar(worker, guard))
