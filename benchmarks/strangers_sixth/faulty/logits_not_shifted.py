"""A subclass computes the log-probs itself and takes the logits at the positions of the completion tokens instead of those one position earlier.
Each token is scored by the logits that come after it was read, so the log-probs and the gradient are about "repeat this token" and not about having chosen it.
say: the per-token log-probs are off by one: logits are not shifted (logits at position t are used for token t instead of those at t-1), so the loss does not use the policy's probabilities of the sampled tokens.
"""

from datasets import Dataset
from material import char_tokenizer, common, sums, teach, tiny_llama
from trl import GRPOConfig, GRPOTrainer


class PlainLogpsTrainer(GRPOTrainer):
    """Log-probs from the ordinary forward pass, without the fused head."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        logits = logits[:, -logits_to_keep:, :] / self.temperature
        targets = input_ids[:, -logits_to_keep:]
        logps = logits.log_softmax(-1)
        per_token = logps.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        entropy = -(logps.exp() * logps).sum(-1) if compute_entropy else None
        return per_token, entropy, None


def exact(completions, answer, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer)]


def build():
    tok = char_tokenizer()
    pairs = sums()
    model = teach(tiny_llama(tok), tok, pairs, noise=0.4)
    data = Dataset.from_dict({"prompt": [q for q, _ in pairs], "answer": [a for _, a in pairs]})
    return PlainLogpsTrainer(
        model=model, reward_funcs=exact, train_dataset=data, processing_class=tok,
        args=GRPOConfig(**common(per_device_train_batch_size=32, max_completion_length=4)),
    )
