"""flatline's MuSiQue task for verifiers: the same problems, the same tool, the same reward."""

from vf_musique.environment import MusiqueEnv, MusiqueHarness
from vf_musique.taskset import MusiqueTaskset

__all__ = ["MusiqueEnv", "MusiqueHarness", "MusiqueTaskset"]
