"""The architecture of the lab policy: a small Qwen2."""

from transformers import Qwen2Config, Qwen2ForCausalLM

from flatline.training.lab.tokenizer import MAX_LENGTH


def build_model(
    *, vocabulary: int, end_of_turn: int, pad: int, width: int, layers: int, heads: int
) -> Qwen2ForCausalLM:
    """A fresh model; the vocabulary is rounded up to a multiple of 16 for speed."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=-(-vocabulary // 16) * 16,
            hidden_size=width,
            intermediate_size=width * 5 // 2,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=MAX_LENGTH,
            rope_theta=10000.0,
            tie_word_embeddings=True,
            initializer_range=0.02,
            bos_token_id=None,
            eos_token_id=end_of_turn,
            pad_token_id=pad,
        )
    )
