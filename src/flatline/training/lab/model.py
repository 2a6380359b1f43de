"""The architecture of the lab policy: a small Llama.

Not Qwen2, though the user's models are: `AutoTokenizer` of transformers 5 overrides the tokenizer
of every folder whose model type is qwen2 with Qwen's own class, and the lab has its own tokenizer.
"""

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from flatline.training.lab.tokenizer import MAX_LENGTH

_SHARPNESS = 40.0
_FAST_ANGLES = 5
_EMBEDDING_SCALE = 4.0
_MATCH, _WRITE = 1.5, 0.3


def build_model(
    *, vocabulary: int, end_of_turn: int, pad: int, width: int, layers: int, heads: int
) -> LlamaForCausalLM:
    """A fresh model; the vocabulary is rounded up to a multiple of 16 for speed."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=-(-vocabulary // 16) * 16,
            hidden_size=width,
            intermediate_size=width * 5 // 2,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=MAX_LENGTH,
            attention_bias=True,
            tie_word_embeddings=True,
            initializer_range=0.02,
            bos_token_id=None,
            eos_token_id=end_of_turn,
            pad_token_id=pad,
        )
    )
    with torch.no_grad():
        # With tied embeddings of the usual size a copied token hardly moves the logits, and copying
        # takes thousands of steps to form instead of a hundred.
        model.model.embed_tokens.weight *= _EMBEDDING_SCALE
    plant_copying_heads(model)
    return model


@torch.no_grad()
def plant_copying_heads(model: LlamaForCausalLM) -> None:
    """Start one head as "see the previous token" and one as "find where this token stood before".

    Together they copy a name out of a document, which the lab policy must do all the time and which
    a small model finds only after a long plateau. Everything else keeps its random start.
    """
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    directions = torch.linalg.qr(torch.randn(config.hidden_size, 3 * size))[0].T
    here, before, copied = directions.split(size)
    first, second = (model.model.layers[i].self_attn for i in (0, 1))
    head = slice(0, size)
    query, key = _previous_token_biases(size)
    first.q_proj.bias[head], first.k_proj.bias[head] = query, key
    first.v_proj.weight[head], first.o_proj.weight[:, head] = here, before.T * _WRITE
    second.q_proj.weight[head], second.k_proj.weight[head] = _MATCH * here, _MATCH * before
    second.v_proj.weight[head], second.o_proj.weight[:, head] = copied, copied.T * _WRITE * 2


def _previous_token_biases(size: int) -> tuple[Tensor, Tensor]:
    """Query and key biases whose product, after rotary embedding, peaks one position back."""
    half = size // 2
    angles = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    strength = torch.zeros(half)
    strength[:_FAST_ANGLES] = _SHARPNESS**0.5
    key = torch.cat([strength, torch.zeros(half)])
    query = torch.cat([strength * torch.cos(angles), -strength * torch.sin(angles)])
    return query, key
