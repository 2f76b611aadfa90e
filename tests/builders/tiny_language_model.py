# SPDX-License-Identifier: Apache-2.0
"""A small Llama with a tokenizer of bytes, and data sets, in the folders that scripts load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sft": lambda i: {"text": f"number {i} is followed by {i + 1}"},
    "dpo": lambda i: {
        "prompt": f"after {i} comes",
        "chosen": f" {i + 1}",
        "rejected": f" {i + 2}",
    },
    "reward": lambda i: {
        "chosen": f"after {i} comes {i + 1}",
        "rejected": f"after {i} comes {i + 2}",
    },
    "kto": lambda i: {
        "prompt": f"after {i} comes",
        "completion": f" {i + 1 + i % 2}",
        "label": i % 2 == 0,
    },
}


def write_model(folder: Path) -> None:
    """Write model and tokenizer as `save_pretrained` does."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<pad>", "<s>", "</s>"]
    numbers = {word: number for number, word in enumerate(words)}
    letters = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        pad_token_id=numbers["<pad>"],
        bos_token_id=numbers["<s>"],
        eos_token_id=numbers["</s>"],
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def write_data(folder: Path, kind: str) -> None:
    """Write a data set of the form that TRL's script of this name wants."""
    folder.mkdir(parents=True)
    for split, numbers in (("train", range(32)), ("test", range(40, 44))):
        rows = (json.dumps(_ROWS[kind](number)) + "\n" for number in numbers)
        (folder / f"{split}.jsonl").write_text("".join(rows))
