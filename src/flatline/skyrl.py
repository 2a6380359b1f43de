"""SkyRL's own trainer, recorded: `trainer.add_callback(flatline.skyrl.Recording("runs/x"))`."""

from flatline.live.skyrl import Recording

__all__ = ["Recording"]
