# SPDX-License-Identifier: Apache-2.0
"""A recipe class in the form of torchtune's, written after its documentation.

Gradients of summed losses are scaled by the number of tokens before the
step; then come clipping, a schedule, an evaluation, and a checkpoint of the recipe.
"""

from __future__ import annotations

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
            for _ in range(2)
        )
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.output(self.norm(hidden))


class FullFinetuneRecipe:
    """Full fine-tuning on one device."""

    def setup(self) -> None:
        torch.manual_seed(3)
        self.model = Decoder(31, 16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)
        self.loss_function = nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")
        self.batches = [torch.randint(0, 31, (2, 9)) for _ in range(8)]
        self.accumulation = 2

    def loss_step(self, tokens: torch.Tensor) -> tuple[torch.Tensor, int]:
        labels = tokens[:, 1:].clone()
        labels[:, 0] = -100
        logits = self.model(tokens[:, :-1])
        kept = int((labels != -100).sum())
        return self.loss_function(logits.flatten(0, 1), labels.flatten()), kept

    def validate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.loss_step(self.batches[0])
        self.model.train()

    def train(self) -> None:
        self.optimizer.zero_grad()
        tokens_seen, running = 0, 0.0
        for index, batch in enumerate(self.batches):
            loss, kept = self.loss_step(batch)
            tokens_seen, running = tokens_seen + kept, running + loss.item()
            loss.backward()
            if (index + 1) % self.accumulation:
                continue
            for parameter in self.model.parameters():
                parameter.grad *= 1 / tokens_seen
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.schedule.step()
            print(f"loss {running / tokens_seen:.6f} grad_norm {norm.item():.6f}")
            tokens_seen, running = 0, 0.0
            self.validate()

    def save_checkpoint(self) -> None:
        torch.save({"model": self.model.state_dict()}, "recipe.pt")


if __name__ == "__main__":
    recipe = FullFinetuneRecipe()
    recipe.setup()
    recipe.train()
    recipe.save_checkpoint()
