# SPDX-License-Identifier: Apache-2.0
"""A small transformer trained one step on real ranks (gloo), shared out in one of several ways.

    python parallel_program.py FOLDER LAYOUT RANK WORLD [moe]

LAYOUT is "single" or a list of axes with sizes, as ``tp2-pp2``; with ``moe`` every other layer has
experts. All ranks make the same weights
and data from one seed, and keep their parts.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from msprobe.pytorch import PrecisionDebugger

WIDTH, HEADS, INNER, LAYERS, BATCH, LENGTH, EXPERTS, MICRO = 8, 4, 16, 4, 4, 6, 4, 2
AXES = ("tp", "cp", "ep", "dp", "pp")


class Place:
    """Place of a rank on each axis, and the groups of the ranks that it shares it with."""

    def __init__(self, layout: str, rank: int, world: int) -> None:
        given = dict.fromkeys((*AXES, "vpp"), 1)
        for part in layout.split("-") if layout != "single" else ():
            given[part.rstrip("0123456789")] = int(part.lstrip("abcdefghijklmnopqrstuvwxyz"))
        self.sizes, self.at, self.groups, self.ranks = given, {}, {}, {}
        sizes = [given[axis] for axis in AXES]
        numbers = torch.arange(world).reshape(sizes[::-1])
        for place, axis in enumerate(reversed(AXES)):
            lines = numbers.movedim(place, -1).reshape(-1, given[axis]).tolist()
            for line in lines:
                group = dist.new_group(line) if given[axis] > 1 else None
                if rank in line:
                    self.groups[axis], self.ranks[axis] = group, line
                    self.at[axis] = line.index(rank)


class Copy(torch.autograd.Function):
    """Hand a value on; add its gradients up over the ranks."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduce(torch.autograd.Function):
    """Add a value up over the ranks; hand its gradient on."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Gather(torch.autograd.Function):
    """Join the parts of a sequence; add the gradients up and keep the own part."""

    @staticmethod
    def forward(ctx, x, group, dim, at):
        ctx.group, ctx.dim, ctx.at, ctx.size = group, dim, at, x.shape[dim]
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad.narrow(ctx.dim, ctx.at * ctx.size, ctx.size), None, None, None


class Exchange(torch.autograd.Function):
    """Send rows to the ranks that they are meant for."""

    @staticmethod
    def forward(ctx, x, group, send, receive):
        ctx.group, ctx.send, ctx.receive = group, send, receive
        found = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(found, x.contiguous(), receive, send, group=group)
        return found

    @staticmethod
    def backward(ctx, grad):
        found = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(found, grad.contiguous(), ctx.send, ctx.receive, group=ctx.group)
        return found, None, None, None


def part(tensor, dim, at, parts):
    return tensor.chunk(parts, dim)[at].contiguous()


class Linear(nn.Module):
    """A product whose weight is split along one of its dimensions, or not at all."""

    def __init__(self, rows, columns, place, split=None):
        super().__init__()
        weight = torch.randn(rows, columns) / columns**0.5
        if split is not None:
            weight = part(weight, split, place.at["tp"], place.sizes["tp"])
        self.weight, self.split, self.group = nn.Parameter(weight), split, place.groups["tp"]

    def forward(self, x):
        if self.group is not None and self.split == 0:
            x = Copy.apply(x, self.group)
        x = functional.linear(x, self.weight)
        return Reduce.apply(x, self.group) if self.group is not None and self.split == 1 else x


class Attention(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.place = place
        self.q, self.k, self.v = (Linear(WIDTH, WIDTH, place, 0) for _ in range(3))
        self.out = Linear(WIDTH, WIDTH, place, 1)

    def forward(self, x):
        q, k, v = (
            each(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        group = self.place.groups["cp"]
        if group is not None:
            k = Gather.apply(k, group, 2, self.place.at["cp"])
            v = Gather.apply(v, group, 2, self.place.at["cp"])
        weights = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.fc1, self.fc2 = Linear(INNER, WIDTH, place, 0), Linear(WIDTH, INNER, place, 1)

    def forward(self, x):
        return self.fc2(functional.gelu(self.fc1(x)))


class Experts(nn.Module):
    """Each row goes to the expert that its largest score names; experts live on the ranks of ep."""

    def __init__(self, place):
        super().__init__()
        self.router = Linear(EXPERTS, WIDTH, place)
        every = [Mlp(place) for _ in range(EXPERTS)]
        self.own = EXPERTS // place.sizes["ep"]
        first = place.at["ep"] * self.own
        self.experts = nn.ModuleList(every[first : first + self.own])
        self.group = place.groups["ep"]

    def forward(self, x):
        rows = x.flatten(0, 1)
        score, chosen = torch.softmax(self.router(rows), -1).max(-1)
        order = torch.argsort(chosen, stable=True)
        sent, counts = rows[order], torch.bincount(chosen, minlength=EXPERTS)
        if self.group is None:
            made = self.run(sent, counts[None])
        else:
            all_counts = [torch.empty_like(counts) for _ in range(EXPERTS // self.own)]
            dist.all_gather(all_counts, counts, group=self.group)
            every = torch.stack(all_counts).unflatten(1, (-1, self.own))
            send = counts.unflatten(0, (-1, self.own)).sum(1).tolist()
            at = dist.get_rank(self.group)
            own = every[:, at]
            receive = own.sum(1).tolist()
            made = self.run(Exchange.apply(sent, self.group, send, receive), own)
            made = Exchange.apply(made, self.group, receive, send)
        back = made[torch.argsort(order)] * score[:, None]
        return back.view_as(x)

    def run(self, rows, counts):
        """Run the experts on rows that are in order of sender, then expert."""
        pieces = rows.split(counts.flatten().tolist())
        made = [None] * len(pieces)
        for number, expert in enumerate(self.experts):
            mine = range(number, len(pieces), len(self.experts))
            found = expert(torch.cat([pieces[each] for each in mine]))
            values = found.split([len(pieces[each]) for each in mine])
            for each, value in zip(mine, values, strict=True):
                made[each] = value
        return torch.cat(made)


class Block(nn.Module):
    def __init__(self, place, number):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(place)
        self.mlp = Experts(place) if number % 2 and "moe" in sys.argv else Mlp(place)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Net(nn.Module):
    """Some layers of the whole; the first piece embeds, the last one has the head."""

    def __init__(self, blocks, embed, head):
        super().__init__()
        if embed is not None:
            self.embed = embed
        self.layers = nn.ModuleList(blocks)
        if head is not None:
            self.norm, self.head = nn.LayerNorm(WIDTH), head

    def forward(self, x):
        if hasattr(self, "embed"):
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def main() -> None:
    folder, layout, rank, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    place = Place(layout, rank, world)
    sizes, at = place.sizes, place.at
    torch.manual_seed(0)
    embed = nn.Embedding(20, WIDTH)
    blocks = [Block(place, number) for number in range(LAYERS)]
    head = Linear(20, WIDTH, place)
    words = torch.randint(20, (MICRO, BATCH, LENGTH))
    for axis in ("dp", "ep"):
        words = part(words, 1, at[axis], sizes[axis])
    words = part(words, 2, at["cp"], sizes["cp"])

    stages = sizes["pp"] * sizes["vpp"]
    each = LAYERS // stages
    numbers = [piece * sizes["pp"] + at["pp"] for piece in range(sizes["vpp"])]
    pieces = [
        Net(
            blocks[number * each : (number + 1) * each],
            embed if number == 0 else None,
            head if number == stages - 1 else None,
        )
        for number in numbers
    ]
    task = "tensor" if "tensor" in sys.argv[5:] else "statistics"
    debugger = PrecisionDebugger(dump_path=f"{folder}/dump", level="mix", task=task)
    debugger.start(pieces if len(pieces) > 1 else pieces[0])
    line = place.ranks["pp"]
    step(words, pieces, numbers, stages, line)
    debugger.stop()
    debugger.step()
    dist.destroy_process_group()


def step(words, pieces, numbers, stages, line):
    """Run all micro batches through the pieces, forward and then backward."""
    for batch in words:
        kept = {}
        for piece, number in zip(pieces, numbers, strict=True):
            if number == 0:
                x = batch
            else:
                x = torch.empty(*batch.shape, WIDTH)
                dist.recv(x, line[(number - 1) % len(line)])
                x.requires_grad_()
            y = piece(x)
            kept[number] = x, y
            if number < stages - 1:
                dist.send(y.detach().contiguous(), line[(number + 1) % len(line)])
        for number in reversed(numbers):
            x, y = kept[number]
            if number == stages - 1:
                loss = y.square().sum()
                loss.backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, line[(number + 1) % len(line)])
                y.backward(grad)
            if number > 0:
                dist.send(x.grad.contiguous(), line[(number - 1) % len(line)])


main()
