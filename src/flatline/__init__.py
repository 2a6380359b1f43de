"""flatline finds out why the reward of an RL run of a language model is flat, and proves it."""

from flatline.errors import FlatlineError

__version__ = "0.1.0"

__all__ = ["FlatlineError", "__version__"]
