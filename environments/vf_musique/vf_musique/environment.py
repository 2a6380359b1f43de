"""How the task is played unless told otherwise: a chat loop on this machine, eight turns at most.

verifiers would give the model a shell in a remote sandbox. This task runs no code, so its program
needs neither.
"""

import verifiers.v1 as vf
from verifiers.v1.harnesses import NullHarness

MAX_TURNS = 8
"""As flatline's `Limits` has it."""


class MusiqueHarness(NullHarness):
    """The plain chat loop: the task's tool and nothing else."""


class MusiqueEnvConfig(vf.SingleAgentEnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig(), max_turns=MAX_TURNS)


class MusiqueEnv(vf.SingleAgentEnv, vf.Env[MusiqueEnvConfig]):
    """One model, one question."""
