# SPDX-License-Identifier: Apache-2.0
"""The tutorial of diffusers on training: a UNet under Accelerate, and images from it."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as the tutorial has it
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.utils.data import DataLoader

set_seed(1)
model = UNet2DModel(
    sample_size=8,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
noise_scheduler = DDPMScheduler(num_train_timesteps=20)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images = [{"images": torch.rand(3, 8, 8)} for _ in range(24)]
train_dataloader = DataLoader(images, batch_size=2, shuffle=True)
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, 2, len(train_dataloader))

accelerator = Accelerator(mixed_precision="no", gradient_accumulation_steps=2, cpu=True)
model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, lr_scheduler
)
for batch in train_dataloader:
    clean_images = batch["images"]
    noise = torch.randn(clean_images.shape)
    timesteps = torch.randint(
        0, noise_scheduler.config.num_train_timesteps, (clean_images.shape[0],), dtype=torch.int64
    )
    noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
    with accelerator.accumulate(model):
        noise_pred = model(noisy_images, timesteps, return_dict=False)[0]
        loss = F.mse_loss(noise_pred, noise)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
    print("loss", loss.detach().item(), "lr", lr_scheduler.get_last_lr()[0])

if accelerator.is_main_process:
    pipeline = DDPMPipeline(unet=accelerator.unwrap_model(model), scheduler=noise_scheduler)
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        batch_size=2,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
        num_inference_steps=3,
    )
    print("images", float(np.abs(made.images).sum()))
    pipeline.save_pretrained("pipeline")
print("weights", sum(p.double().abs().sum().item() for p in model.parameters()))
accelerator.end_training()
