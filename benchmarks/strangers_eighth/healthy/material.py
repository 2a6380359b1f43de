"""Shared helpers: tiny models from configs, tokenizers built from scratch, and a few seconds of supervised teaching.

The teaching stands for the pretrained / SFT checkpoint one would normally download: it leaves a policy that knows the
format and is right only some of the time, so that the rewards of a group differ.
"""

import os
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, set_seed

torch.set_num_threads(1)


# --------------------------------------------------------------------------------------------------------- tokenizers
def char_tokenizer(alphabet, eos="</s>", pad="<pad>", extra=(), **kwargs):
    """One token a character."""
    specials = list(dict.fromkeys([t for t in ("<unk>", pad, eos, *extra) if t is not None]))
    vocab = {t: i for i, t in enumerate(specials + sorted(set(alphabet)))}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tok.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tok,
        unk_token="<unk>",
        eos_token=eos,
        pad_token=pad,
        additional_special_tokens=list(extra) or None,
        clean_up_tokenization_spaces=False,
        **kwargs,
    )


def byte_bpe_tokenizer(corpus, vocab_size=400, eos="<|endoftext|>", pad="<|pad|>", extra=(), **kwargs):
    """Byte-level BPE, as GPT-2's and Qwen's."""
    specials = list(dict.fromkeys([t for t in (eos, pad, *extra) if t is not None]))
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tok,
        eos_token=eos,
        pad_token=pad,
        additional_special_tokens=list(extra) or None,
        clean_up_tokenization_spaces=False,
        **kwargs,
    )


def unigram_tokenizer(corpus, vocab_size=120, eos="</s>", pad="<pad>", **kwargs):
    """SentencePiece-like unigram with a metaspace."""
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    tok.train_from_iterator(
        corpus,
        trainers.UnigramTrainer(
            vocab_size=vocab_size, special_tokens=["<unk>", eos, pad], unk_token="<unk>", show_progress=False
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tok,
        unk_token="<unk>",
        eos_token=eos,
        pad_token=pad,
        clean_up_tokenization_spaces=False,
        **kwargs,
    )


def word_tokenizer(words, eos="<eos>", pad="<pad>", extra=(), **kwargs):
    """One token a whitespace-separated word."""
    specials = [t for t in ("<unk>", pad, eos, *extra) if t is not None]
    vocab = {t: i for i, t in enumerate(list(dict.fromkeys(specials + sorted(set(words)))))}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tok,
        unk_token="<unk>",
        eos_token=eos,
        pad_token=pad,
        additional_special_tokens=list(extra) or None,
        clean_up_tokenization_spaces=False,
        **kwargs,
    )


CHATML = (
    "{%- for m in messages -%}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)


# ------------------------------------------------------------------------------------------------------------- models
def tiny(family, tok, hidden=64, layers=2, heads=4, seed=0, **over):
    """A tiny causal model of a family, by its config class."""
    import transformers as tf

    set_seed(seed)
    common = dict(
        vocab_size=len(tok),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=1024,
        pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id,
        bos_token_id=tok.bos_token_id,
    )
    kv = dict(num_key_value_heads=max(1, heads // 2))
    table = {
        "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, {**kv}),
        "mistral": (tf.MistralConfig, tf.MistralForCausalLM, {**kv, "head_dim": hidden // heads}),
        "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM, {**kv, "tie_word_embeddings": True}),
        "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, {**kv, "head_dim": hidden // heads}),
        "qwen3_moe": (
            tf.Qwen3MoeConfig,
            tf.Qwen3MoeForCausalLM,
            {
                **kv,
                "head_dim": hidden // heads,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": hidden,
                "router_aux_loss_coef": 0.001,
            },
        ),
        "gemma2": (
            tf.Gemma2Config,
            tf.Gemma2ForCausalLM,
            {**kv, "head_dim": hidden // heads, "query_pre_attn_scalar": hidden // heads},
        ),
        "granite": (tf.GraniteConfig, tf.GraniteForCausalLM, {**kv, "logits_scaling": 2.0, "tie_word_embeddings": True}),
        "gpt_neox": (tf.GPTNeoXConfig, tf.GPTNeoXForCausalLM, {}),
        "opt": (tf.OPTConfig, tf.OPTForCausalLM, {"ffn_dim": 2 * hidden, "word_embed_proj_dim": hidden}),
        "starcoder2": (tf.Starcoder2Config, tf.Starcoder2ForCausalLM, {**kv, "use_bias": True, "residual_dropout": 0.0}),
        "stablelm": (
            tf.StableLmConfig,
            tf.StableLmForCausalLM,
            {**kv, "use_qkv_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        ),
        "olmo2": (tf.Olmo2Config, tf.Olmo2ForCausalLM, {**kv}),
        "cohere": (tf.CohereConfig, tf.CohereForCausalLM, {**kv, "logit_scale": 0.25}),
        "phi3": (tf.Phi3Config, tf.Phi3ForCausalLM, {**kv}),
    }
    config_class, model_class, special = table[family]
    return model_class(config_class(**{**common, **special, **over}))


def encode(tok, prompt, completion, end=True):
    """(prompt ids, completion ids) exactly as the trainer will see them."""
    if isinstance(prompt, str):
        head = tok(text=[prompt])["input_ids"][0]
    else:
        head = tok.apply_chat_template([prompt], add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ][0]
    tail = tok(completion, add_special_tokens=False)["input_ids"]
    return head, tail + ([tok.eos_token_id] if end else [])


def teach(model, rows, steps=150, lr=3e-3, batch=32, seed=0, pad=0):
    """Supervised teaching on (prompt ids, completion ids): the loss is on the completions only."""
    gen = torch.Generator().manual_seed(seed)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10) * (1 - s / steps))
    model.train()
    loss = None
    for _ in range(steps):
        chosen = [rows[i] for i in torch.randint(len(rows), (batch,), generator=gen).tolist()]
        width = max(len(h) + len(t) for h, t in chosen)
        ids = torch.full((batch, width), pad)
        labels = torch.full((batch, width), -100)
        mask = torch.zeros((batch, width), dtype=torch.long)
        for i, (h, t) in enumerate(chosen):
            n = len(h) + len(t)
            ids[i, :n] = torch.tensor(h + t)
            labels[i, len(h) : n] = torch.tensor(t)
            mask[i, :n] = 1
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
    model.eval()
    if os.environ.get("MATERIAL_VERBOSE"):
        print("teach: last loss", round(loss.item(), 3))
    return model


def on_disk(model, tok):
    """The checkpoint as a directory, for trainers that load the policy and its reference from a path."""
    path = tempfile.mkdtemp(prefix="ckpt-")
    model.save_pretrained(path)
    tok.save_pretrained(path)
    return path


def base_args(**over):
    """What every run here has in common (CPU, fp32, quiet)."""
    return {
        **dict(
            output_dir=tempfile.mkdtemp(prefix="run-"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            gradient_checkpointing=False,
        ),
        **over,
    }


# ------------------------------------------------------------------------------------------------------------ teaching
def half_right(tok, pairs, wrong, right=0.5, copies=8, seed=0, end=True):
    """Teaching rows in which an answer is the right one with probability `right`, and otherwise `wrong(rng, answer)`.

    `pairs` is [(prompt, answer)], a prompt being a string or a conversation.
    """
    import random

    rng = random.Random(seed)
    rows = []
    for prompt, answer in pairs:
        for _ in range(copies):
            rows.append(encode(tok, prompt, answer if rng.random() < right else wrong(rng, answer), end=end))
    return rows


# --------------------------------------------------------------------------------------------------------- tool dialogues
TOOL_CHAT = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') }}"
    "{%- for c in m.get('tool_calls') or [] -%}"
    "{{ '<tool_call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</tool_call>' }}"
    "{%- endfor -%}{{ '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
TOOL_RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def tool_tokenizer(corpus, vocab_size=420):
    """Byte BPE with a chat template that renders tool calls, and the way to read them back."""
    tok = byte_bpe_tokenizer(
        corpus,
        vocab_size=vocab_size,
        eos="<|im_end|>",
        pad="<|pad|>",
        extra=["<|im_start|>", "<tool_call>", "</tool_call>"],
        padding_side="left",
    )
    tok.chat_template = TOOL_CHAT
    tok.response_template = TOOL_RESPONSE
    return tok


def call_text(name, **arguments):
    import json

    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


def tool_row(tok, prompt, turns):
    """(prompt ids, completion ids) of a dialogue; turns is [assistant text, tool text, assistant text, ...]."""
    head, tail = encode(tok, prompt, turns[0])
    for i in range(1, len(turns) - 1, 2):
        middle = f"\n<|im_start|>tool\n{turns[i]}<|im_end|>\n<|im_start|>assistant\n"
        tail = tail + tok(middle, add_special_tokens=False)["input_ids"]
        tail = tail + tok(turns[i + 1], add_special_tokens=False)["input_ids"] + [tok.eos_token_id]
    return head, tail
