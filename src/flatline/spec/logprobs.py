"""How likely the model finds each token of a completion.

    log pi(o_t | q, o_<t) = log softmax(z_t / temperature)[o_t]

One row by itself, without padding, from the first token of the prompt on: nothing that a batch does
to a row can be in it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Logits = Callable[[Tensor], Tensor]
"""Token ids (1, L) -> logits (1, L, V): the model, and nothing around it."""


def logprobs(
    logits: Logits,
    prompt: Sequence[int],
    completion: Sequence[int],
    temperature: float,
    device: str,
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of each token of the completion."""
    ids_1L = torch.tensor([[*prompt, *completion]], device=device)
    told_TV = logits(ids_1L)[0, len(prompt) - 1 : -1].float() / temperature
    every_TV = torch.log_softmax(told_TV, -1)
    chosen_T = every_TV.gather(1, ids_1L[0, len(prompt) :, None])[:, 0]
    entropy_T = -(every_TV.exp() * every_TV).sum(-1)
    return chosen_T, entropy_T
