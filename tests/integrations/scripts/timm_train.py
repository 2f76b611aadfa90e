# SPDX-License-Identifier: Apache-2.0
"""A training after timm's documentation: its model, optimizer, schedule, loss, mixing and EMA."""

import os

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, random_seed
from torch.nn.parallel import DistributedDataParallel

ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
random_seed(1, int(os.environ.get("RANK", "0")))
torch.manual_seed(1)
model = timm.create_model(
    "resnet10t", pretrained=False, num_classes=5, drop_rate=0.1, drop_path_rate=0.1
)
ema = ModelEmaV3(model, decay=0.9)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=4, warmup_t=1, warmup_lr_init=1e-5)
mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=5)
train_loss = SoftTargetCrossEntropy()
trained = DistributedDataParallel(model) if ranks > 1 else model

for epoch in range(2):
    trained.train()
    for update in range(3):
        images, labels = mixup(torch.randn(2, 3, 64, 64), torch.randint(0, 5, (2,)))
        optimizer.zero_grad()
        loss = train_loss(trained(images), labels)
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0, mode="norm")
        optimizer.step()
        ema.update(model)
        print("loss", epoch, update, loss.item())
    scheduler.step(epoch + 1)
    trained.eval()
    with torch.no_grad():
        print("scores", trained(torch.ones(2, 3, 64, 64)).sum().item())
if int(os.environ.get("RANK", "0")) == 0:
    torch.save(model.state_dict(), "weights.pt")
print("weights", sum(p.double().abs().sum().item() for p in ema.parameters()))
if ranks > 1:
    torch.distributed.destroy_process_group()
