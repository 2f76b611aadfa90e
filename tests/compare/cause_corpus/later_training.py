# SPDX-License-Identifier: Apache-2.0
"""Further programs: an encoder with a data loader, adapters, a student with a teacher."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .training import SEED, Training

PAD = 0
Text = tuple[Tensor, int]


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.norm1(x)
        query, key, value = (self.split(f(y)) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(self.act(self.up(self.norm2(x)))))


class Encoder(nn.Module):
    """A classifier of texts."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(29, width, padding_idx=PAD)
        self.places = nn.Embedding(12, width)
        self.layers = nn.ModuleList(EncoderLayer(width, 2) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)
        self.first_place = 0
        self.embed_scale = width**0.5
        self.uses_mask = True

    def embedded(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]) + self.first_place
        return self.embed(tokens) * self.embed_scale + self.places(places)

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embedded(tokens)
        mask = attention_mask[:, None, None, :].bool() if self.uses_mask else None
        for layer in self.layers:
            x = layer(x, mask)
        weights = attention_mask.unsqueeze(-1).to(x.dtype)
        return self.head((self.norm(x) * weights).sum(1) / weights.sum(1))


class Texts(Dataset[Text]):
    """Texts of different lengths with a label each."""

    def __init__(self, count: int) -> None:
        made = torch.Generator().manual_seed(SEED)
        lengths = torch.randint(3, 8, (count,), generator=made).tolist()
        self.texts = [torch.randint(1, 29, (length,), generator=made) for length in lengths]
        self.labels = torch.randint(0, 4, (count,), generator=made).tolist()

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, place: int) -> Text:
        return self.texts[place], self.labels[place]


class EncoderTraining(Training):
    """AdamW with two groups, warm-up, clipping; batches come from a shuffling loader.

    Attributes:
        loader: gives the batches, epoch after epoch.
        micro_batches: how many batches make a step.
        padding_side: "right" or "left".
    """

    def __init__(self, steps: int) -> None:
        self.micro_batches = 2
        self.padding_side = "right"
        self.data = Texts(10)
        super().__init__(steps)
        self.loader = self.make_loader()
        self.max_norm = 0.5
        self.make_scheduler()
        self._batches: Iterator[Any] = self.epochs()

    def make_model(self) -> nn.Module:
        return Encoder()

    def make_batches(self, step: int) -> list[Any]:
        return []

    def make_loader(self, *, drop_last: bool = False, seed: int = 5) -> DataLoader[Any]:
        return DataLoader(
            self.data,  # type: ignore[arg-type]
            batch_size=4,
            shuffle=True,
            drop_last=drop_last,
            generator=torch.Generator().manual_seed(seed),
            collate_fn=self.collate,
        )

    def make_optimizer(self) -> torch.optim.Optimizer:
        head = [p for name, p in self.model.named_parameters() if name.startswith("head.")]
        body = [p for name, p in self.model.named_parameters() if not name.startswith("head.")]
        groups = [{"params": body}, {"params": head, "lr": 5e-3}]
        return torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.01)

    def make_scheduler(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / 4, 1.0)
        )

    def collate(self, texts: list[Text]) -> tuple[Tensor, Tensor]:
        labels = torch.tensor([label for _, label in texts])
        length = max(len(tokens) for tokens, _ in texts)
        rows = []
        for tokens, _ in texts:
            gap = length - len(tokens)
            rows.append(F.pad(tokens, (0, gap) if self.padding_side == "right" else (gap, 0)))
        return torch.stack(rows), labels

    def epochs(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.loader

    def run_step(self, step: int) -> None:
        self.before_step(step)
        for _ in range(self.micro_batches):
            tokens, labels = next(self._batches)
            with self.forward_context():
                loss = self.loss(self.model(tokens, (tokens != PAD).long()), labels)
            self.backward(self.micro_loss(loss, self.micro_batches))
        self.after_backward(step)
        self.update()
        self.after_step(step)
        if self.zero_grad:
            self.optimizer.zero_grad()

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output, labels)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint of the training holds."""
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        if self.scaler is not None:
            parts["scaler"] = self.scaler
        return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}  # type: ignore[union-attr]

    def resume(self, saved: dict[str, Any]) -> None:
        """Begin anew with what a checkpoint holds, the generator of random numbers included."""
        generator = torch.get_rng_state()
        torch.manual_seed(SEED)
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.make_scheduler()
        if self.scaler is not None:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
        for name, state in saved.items():
            getattr(self, name).load_state_dict(state)
        torch.set_rng_state(generator)


class LowRank(nn.Module):
    """A linear layer with an adapter of rank 2."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.lora_b = nn.Parameter(torch.randn(base.out_features, 2) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b)


class AdapterTraining(EncoderTraining):
    """The encoder, frozen, with adapters at queries and values."""

    def make_model(self) -> nn.Module:
        model = Encoder()
        model.requires_grad_(False)
        for layer in model.layers:
            layer.query = LowRank(layer.query)  # type: ignore[assignment, arg-type]
            layer.value = LowRank(layer.value)  # type: ignore[assignment, arg-type]
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=1e-2)


class Pair(nn.Module):
    """A student and a teacher, whose parameters are the student's moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(x), self.teacher(x)


class TeacherTraining(Training):
    """A student learns from labels and from its teacher; two optimizers, Adam and SGD."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.average = 0.9
        self.teacher_weight = 0.5
        self.second_optimizer = torch.optim.SGD(self.model.student[0].parameters(), lr=0.2)  # type: ignore[index, union-attr]

    def make_model(self) -> nn.Module:
        return Pair()

    def make_batches(self, step: int) -> list[Any]:
        return [(torch.randn(5, 6), torch.randint(0, 3, (5,)))]

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.student[2].parameters(), lr=0.05)  # type: ignore[index, union-attr]

    def loss(self, output: Any, labels: Tensor) -> Tensor:
        learned, taught = output
        return F.cross_entropy(learned, labels) + self.teacher_weight * F.mse_loss(learned, taught)

    def update(self) -> None:
        super().update()
        self.second_optimizer.step()
        self.second_optimizer.zero_grad()
        with torch.no_grad():
            pairs = zip(
                self.model.teacher.parameters(),  # type: ignore[union-attr]
                self.model.student.parameters(),  # type: ignore[union-attr]
                strict=True,
            )
            for mean, p in pairs:
                mean.lerp_(p, 1 - self.average)


LATER_FAMILIES: dict[str, type[Training]] = {
    "encoder": EncoderTraining,
    "adapters": AdapterTraining,
    "teacher": TeacherTraining,
}
