# SPDX-License-Identifier: Apache-2.0
"""Convolutional families: in-place activations after BatchNorm, and skip connections."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .training import TrainCase, seed_everything, simple_case


class ResidualConv(nn.Module):
    """Two convolutions with BatchNorm and in-place ReLU; the shortcut is added in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.relu(out)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.body = nn.Sequential(ResidualConv(8), ResidualConv(8))
        self.drop = nn.Dropout2d(0.2)
        self.identity = nn.Identity()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.identity(self.body(self.stem(x)))
        x = F.avg_pool2d(self.drop(x), 2).mean(dim=(2, 3))
        y = self.head(x)
        y += 0.5
        return y


def conv_bn_inplace(seed: int) -> TrainCase:
    """Convolutions, BatchNorm, in-place ReLU, in-place residual, dropout; SGD with momentum."""
    seed_everything(seed)
    model = ConvNet()
    images, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return simple_case(model, lambda _: F.cross_entropy(model(images), labels), optimizer)


class UNet(nn.Module):
    """One level down and up: pooling, interpolation, transposed convolution, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 1))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.fuse = nn.Conv2d(8 + 8 + 16, 8, 3, padding=1)
        self.leave = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.enter(x)
        low = self.middle(self.down(skip))
        pooled, where = F.max_pool2d(low, 2, return_indices=True)
        low = F.max_unpool2d(pooled, where, 2)
        wide = F.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        joined = torch.cat([skip, self.up(low), wide], dim=1)
        joined = F.pad(joined, (1, 1, 1, 1), mode="reflect")[:, :, 1:-1, 1:-1]
        return self.leave(F.leaky_relu(self.fuse(joined), 0.1, inplace=True)) + x


def unet(seed: int) -> TrainCase:
    """Skip connections over down- and upsampling; trained with AdamW on a denoising loss."""
    seed_everything(seed)
    model = UNet()
    clean = torch.rand(2, 1, 8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(_step: int) -> Tensor:
        noisy = clean + 0.1 * torch.randn_like(clean)
        return F.mse_loss(model(noisy), clean)

    return simple_case(model, loss_of, optimizer)
