"""What all of these scripts share: tokenizers made on the spot, small models, a short SFT warm-up.

The warm-up plays the part of the SFT checkpoint that one would load from disk.
"""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import random
import tempfile

import torch
import transformers as hf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

torch.set_num_threads(1)

CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def letters(alphabet, eos="<eos>", pad="<pad>", extra=()):
    """A character-level tokenizer. `pad=None` leaves the pad token unset."""
    names = ["<unk>", eos, *([pad] if pad else []), *extra]
    table = {name: i for i, name in enumerate([*names, *sorted(set(alphabet))])}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return _wrap(core, eos, pad, extra, unk_token="<unk>")


def pieces(texts, size=360, eos="<|end|>", pad="<|pad|>", extra=()):
    """A byte-level BPE tokenizer trained on `texts`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[eos, *([pad] if pad else []), *extra],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return _wrap(core, eos, pad, extra)


def words(vocabulary, eos="<eos>", pad="<pad>", extra=()):
    """One token per blank-separated word."""
    names = ["<unk>", eos, pad, *extra]
    table = {name: i for i, name in enumerate([*names, *sorted(set(vocabulary))])}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrap(core, eos, pad, extra, unk_token="<unk>")


def _wrap(core, eos, pad, extra, **more):
    if pad:
        more["pad_token"] = pad
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        additional_special_tokens=list(extra) or None,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        **more,
    )


def small(kind, tok, width=64, depth=2, seed=0, **more):
    """A small causal LM of the given architecture for the tokenizer."""
    hf.set_seed(seed)
    pad = tok.pad_token_id if tok.pad_token_id is not None else tok.eos_token_id
    ids = dict(vocab_size=len(tok), pad_token_id=pad, eos_token_id=tok.eos_token_id, bos_token_id=None)
    body = dict(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=depth,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    if kind == "gpt2":
        config = hf.GPT2Config(
            n_embd=width, n_layer=depth, n_head=4, n_positions=256,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **{**ids, **more},
        )
    elif kind in ("llama", "qwen2"):
        config_class = {"llama": hf.LlamaConfig, "qwen2": hf.Qwen2Config}[kind]
        config = config_class(**{**ids, **body, "num_key_value_heads": 2, **more})
    elif kind in ("gemma", "qwen3", "mistral"):
        config_class = {"gemma": hf.GemmaConfig, "qwen3": hf.Qwen3Config, "mistral": hf.MistralConfig}[kind]
        config = config_class(**{**ids, **body, "num_key_value_heads": 2, "head_dim": width // 4, **more})
    elif kind == "neox":
        config = hf.GPTNeoXConfig(**{**ids, **body, **more})
    elif kind == "opt":
        body.pop("intermediate_size")
        config = hf.OPTConfig(**{**ids, **body, "ffn_dim": 2 * width, "word_embed_proj_dim": width, "dropout": 0.0, **more})
    else:
        raise ValueError(kind)
    return hf.AutoModelForCausalLM.from_config(config)


def prompt_ids(tok, prompt):
    if isinstance(prompt, str):
        return tok(prompt)["input_ids"]
    text = tok.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tok(text, add_special_tokens=False)["input_ids"]


def sft(model, tok, rows, steps=300, lr=3e-3, batch=32, seed=0):
    """Cross-entropy on the completions of `rows` = [(prompt, completion), ...], each closed by the EOS token."""
    rng = random.Random(seed)
    ready = [
        (prompt_ids(tok, p), tok(c, add_special_tokens=False)["input_ids"] + [tok.eos_token_id]) for p, c in rows
    ]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    model.train()
    for _ in range(steps):
        picked = rng.sample(ready, batch) if len(ready) >= batch else rng.choices(ready, k=batch)
        longest = max(len(p) + len(c) for p, c in picked)
        ids, labels, mask = [], [], []
        for p, c in picked:
            gap = longest - len(p) - len(c)
            ids.append(p + c + [0] * gap)
            labels.append([-100] * len(p) + c + [-100] * gap)
            mask.append([1] * (len(p) + len(c)) + [0] * gap)
        loss = model(
            input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), labels=torch.tensor(labels)
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    if os.environ.get("KIT_VERBOSE"):
        print("sft loss", round(loss.item(), 3))
    return model


def mixed(pairs, spoil, share=0.5, times=6, seed=0):
    """Every pair `times` times, the answer right with probability `share` and otherwise `spoil(rng, answer)`."""
    rng = random.Random(seed)
    return [(p, a if rng.random() < share else spoil(rng, a)) for p, a in pairs for _ in range(times)]


def folder(prefix="run-"):
    return tempfile.mkdtemp(prefix=prefix)


def saved(model, tok):
    """The checkpoint as a folder, as it would come from an earlier stage."""
    path = folder("ckpt-")
    model.save_pretrained(path)
    tok.save_pretrained(path)
    return path


def quiet(**settings):
    """Settings that every run on this machine has."""
    return {
        "output_dir": folder(),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        **settings,
    }
