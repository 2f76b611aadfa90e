# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch and transformers of many families, each with the loss of one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from torch import nn
from torch.utils.checkpoint import checkpoint
from traced_models import DenseConvolutions, Experts, Recurrent

Made = tuple[Any, Callable[[Any], Any]]


def convolution(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU()
    )


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            convolution(inside, outside, stride),
            convolution(outside, outside),
        )
        self.downsample = nn.Conv2d(inside, outside, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return torch.relu(self.conv2(self.conv1(x)) + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(3, 8)
        self.stages = nn.ModuleList(
            nn.Sequential(BasicBlock(a, b, s), BasicBlock(b, b, 1))
            for a, b, s in ((8, 8, 1), (8, 16, 2), (16, 16, 2))
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(self.pool(x).flatten(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(convolution(a, b) for a, b in ((3, 4), (4, 8), (8, 8)))
        self.middle = convolution(8, 8)
        self.up = nn.ModuleList(nn.ConvTranspose2d(8, 8, 2, 2) for _ in range(3))
        self.join = nn.ModuleList(convolution(a, 8) for a in (16, 16, 12))
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.out(x)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(16, 20)
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.embedding(x))[0])


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Transformer(16, 2, 2, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 9)

    def forward(self, source: Any, wanted: Any) -> Any:
        return self.head(self.core(source, wanted))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 16), nn.Tanh()
        )
        self.judge = nn.Sequential(nn.Linear(16, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


def gan_loss(model: Any) -> Any:
    noise, real, loss = torch.randn(4, 6), torch.randn(4, 16), nn.BCEWithLogitsLoss()
    made = model.generator(noise)
    judged = loss(model.judge(real), torch.ones(4, 1))
    judged = judged + loss(model.judge(made.detach()), torch.zeros(4, 1))
    judged.backward()
    return loss(model.judge(made), torch.ones(4, 1))


def square(*inputs: Any) -> Callable[[Any], Any]:
    return lambda model: model(*inputs).square().mean()


def torch_models() -> dict[str, Made]:
    images = torch.randn(2, 3, 16, 16)
    ids = torch.arange(12).reshape(2, 6) + 1
    return {
        "resnet": (ResNet(), square(images)),
        "unet": (UNet(), square(images)),
        "densenet": (DenseConvolutions(), square(images)),
        "lstm": (Lstm(), square(ids)),
        "unrolled": (Recurrent(), square(torch.randn(2, 3, 6))),
        "experts": (Experts(), square(torch.randn(4, 8))),
        "encoder-decoder": (EncoderDecoder(), square(torch.randn(2, 5, 16), torch.randn(2, 4, 16))),
        "gan": (Gan(), gan_loss),
        "recomputed": (Recomputed(), square(torch.randn(3, 8))),
    }


def transformers_models() -> dict[str, Made]:
    ids = torch.arange(12).reshape(2, 6) + 1
    small = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4}
    wide = {**small, "intermediate_size": 64, "vocab_size": 40}
    made: dict[str, Made] = {
        "gpt2": (
            tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=4, n_head=2, vocab_size=40)),
            lambda model: model(ids, labels=ids).loss,
        ),
        "llama": (
            tf.LlamaForCausalLM(tf.LlamaConfig(**wide, num_key_value_heads=1)),
            lambda model: model(ids, labels=ids).loss,
        ),
        "bert": (
            tf.BertForMaskedLM(tf.BertConfig(**wide)),
            lambda model: model(ids, labels=ids).loss,
        ),
        "t5": (
            tf.T5ForConditionalGeneration(
                tf.T5Config(
                    d_model=32,
                    d_ff=64,
                    d_kv=16,
                    num_layers=3,
                    num_heads=2,
                    vocab_size=40,
                    pad_token_id=0,
                    decoder_start_token_id=0,
                )
            ),
            lambda model: model(ids, labels=ids).loss,
        ),
        "mixtral": (
            tf.MixtralForCausalLM(
                tf.MixtralConfig(**wide, num_key_value_heads=1, num_local_experts=4)
            ),
            lambda model: model(ids, labels=ids).loss,
        ),
        "vit": (
            tf.ViTForImageClassification(tf.ViTConfig(**small, image_size=32, patch_size=8)),
            lambda model: model(torch.randn(2, 3, 32, 32)).logits.square().mean(),
        ),
    }
    return made
