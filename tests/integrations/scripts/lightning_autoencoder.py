# SPDX-License-Identifier: Apache-2.0
"""Lightning's introduction: a `LightningModule`, a `DataLoader` and a `Trainer`."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


lightning.seed_everything(1)
encoder = nn.Sequential(nn.Linear(28, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28))
autoencoder = LitAutoEncoder(encoder, decoder)
data = TensorDataset(torch.rand(24, 28))
ranks = int(os.environ.get("WORLD_SIZE", "1"))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    max_epochs=2,
    accumulate_grad_batches=2,
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(autoencoder, DataLoader(data, batch_size=2), DataLoader(data, batch_size=8))
trainer.save_checkpoint("weights.ckpt", weights_only=True)
print("weights", sum(p.double().abs().sum().item() for p in autoencoder.parameters()))
