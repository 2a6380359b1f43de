"""For ms-swift's `--external_plugins`: a reward, and a callback that asks about its trainer.

What `attach` and `checkup` say goes to FLATLINE_OUT/said.json; then the training is watched.
"""

import json
import os
from pathlib import Path

from swift.callbacks import TrainerCallback, callbacks_map
from swift.rewards import ORM, orms

import flatline

OUT = Path(os.environ["FLATLINE_OUT"])


class Letters(ORM):
    def __call__(self, completions, **_):
        return [text.count("e") / max(1, len(text)) for text in completions]


class Flatline(TrainerCallback):
    """Every callback is called twice: ms-swift's trainers register theirs in two places."""

    watch = None

    def on_train_begin(self, args, state, control, **_):
        if Flatline.watch is not None:
            return
        asked = {
            "attach": lambda: flatline.attach(self.trainer, OUT / "run"),
            "checkup": lambda: flatline.checkup(self.trainer),
        }
        said = {name: refusal(ask) for name, ask in asked.items()}
        (OUT / "said.json").write_text(json.dumps(said))
        Flatline.watch = flatline.watch(self.trainer.model, self.trainer.optimizer, OUT / "watched")

    def on_train_end(self, args, state, control, **_):
        Flatline.watch.close()


def refusal(ask):
    try:
        ask()
    except flatline.FlatlineError as error:
        return str(error)
    return None


orms["letters"] = Letters
callbacks_map["flatline"] = Flatline
