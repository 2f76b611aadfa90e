# SPDX-License-Identifier: Apache-2.0
"""Train a small character transformer on real text and record three of its steps with msprobe.

    python examples/char_transformer.py --dump demo_output/healthy
    python examples/char_transformer.py --dump demo_output/broken --plant-bug
    python examples/char_transformer.py --dump demo_output/ported --plant-bug silent

The text is the language reference that comes with every Python (`pydoc_data.topics`), so nothing is
downloaded. With `--plant-bug` one document in the batch of step 20 is empty. Attention over nothing
is 0/0. The loss of step 20 leaves the empty document out and looks fine, but the gradients do not,
and from step 21 on every weight is NaN. The recording shows where that came from.

With `--plant-bug silent` the attention of the second block forgets to scale its scores, as happens
when a model is ported by hand. The loss falls almost as well. Comparing the recording with the
healthy one names the operation.

What msprobe needs are the lines marked with `# msprobe`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name that everybody uses)

from msprobe.pytorch import PrecisionDebugger, seed_all  # msprobe

STEPS: Final = 40
RECORDED_STEPS: Final = [0, 20, 21]
BUG_STEP: Final = 20
BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 16, 96, 96, 4, 3
IGNORED: Final = -100  # targets that the loss leaves out


class Batch(NamedTuple):
    """Characters of some documents, the ones that follow them, and how long each document is."""

    inputs: Tensor
    targets: Tensor
    lengths: Tensor


class Attention(nn.Module):
    """Causal self-attention, written out so that each operation can be seen in the recording."""

    def __init__(self, *, scaled: bool = True) -> None:
        """Make the four projections; without `scaled` the scores are left as they come."""
        super().__init__()
        self.scaled = scaled
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Mix each position with those that it may see."""
        batch, context, _ = x.shape
        parts = self.query_key_value(x).view(batch, context, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1)
        if self.scaled:
            scores = scores / (WIDTH // HEADS) ** 0.5
        # A softmax over the visible positions. Where none is visible it divides zero by zero.
        weights = scores.exp() * visible
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return self.project((weights @ value).transpose(1, 2).reshape(batch, context, WIDTH))


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, *, scaled: bool = True) -> None:
        """Make the two halves and their norms."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(scaled=scaled)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Attend, then think, each added to what came in."""
        x = x + self.attention(self.norm1(x), visible)
        return x + self.mlp(self.norm2(x))


class CharTransformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, alphabet_size: int, unscaled_block: int | None = None) -> None:
        """Make embeddings, blocks and the output layer."""
        super().__init__()
        self.characters = nn.Embedding(alphabet_size, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(
            Block(scaled=number != unscaled_block) for number in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, alphabet_size)

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss over all characters that count."""
        place = torch.arange(CONTEXT)
        inside = place < batch.lengths[:, None]
        visible = (place <= place[:, None]) & inside[:, None, :]
        x = self.characters(batch.inputs) + self.positions(place)
        for block in self.blocks:
            x = block(x, visible[:, None])
        logits = self.output(self.norm(x))
        targets = batch.targets.masked_fill(~inside, IGNORED)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def read_text() -> tuple[Tensor, int]:
    """Return the Python reference as numbers, one per character, and how many kinds there are."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


def batches(text: Tensor, plant_bug: bool) -> Iterator[Batch]:
    """Yield one batch a step, the same ones in every run."""
    generator = torch.Generator().manual_seed(7)
    for step in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        window = text[starts[:, None] + torch.arange(CONTEXT + 1)]
        lengths = torch.full((BATCH,), CONTEXT)
        if plant_bug and step == BUG_STEP:
            lengths[5] = 0
        yield Batch(window[:, :-1], window[:, 1:], lengths)


def train(dump_path: str, bug: str | None) -> None:
    """Train for some steps; msprobe records three of them."""
    debugger = PrecisionDebugger(  # msprobe
        dump_path=dump_path, level="mix", task="statistics", step=RECORDED_STEPS
    )
    seed_all(1234)  # msprobe
    text, alphabet_size = read_text()
    model = CharTransformer(alphabet_size, unscaled_block=1 if bug == "silent" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(text):,} characters of real text, {size:,} parameters, {STEPS} steps")
    for step, batch in enumerate(batches(text, bug == "nan")):
        begin = time.perf_counter()
        debugger.start(model)  # msprobe
        loss = model(batch)
        loss.backward()
        debugger.stop()  # msprobe
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()  # msprobe
        if step % 5 == 0 or step in RECORDED_STEPS:
            elapsed_ms = (time.perf_counter() - begin) * 1000
            recorded = "  recorded" if step in RECORDED_STEPS else ""
            print(f"step {step:3}   loss {loss.item():.3f}   {elapsed_ms:5.0f} ms{recorded}")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump", required=True, help="folder for the recording")
    parser.add_argument(
        "--plant-bug",
        nargs="?",
        const="nan",
        choices=("nan", "silent"),
        help="nan: let the run break at step 20; silent: leave a scaling out",
    )
    arguments = parser.parse_args()
    train(arguments.dump, arguments.plant_bug)


if __name__ == "__main__":
    main()
