# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's getting started: `initialize`, then the engine's forward, backward and step.

An evaluation follows each step.
"""

import os

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset

for name, value in {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29517",
}.items():
    os.environ.setdefault(name, value)
# Training goes without this kernel of inference, which takes two minutes of a core to compile.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
torch.manual_seed(1)
# Even sizes: ZeRO 3 saves the padding of what it cannot divide, and that is undefined memory.
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": int(os.environ.get("ZERO", "2"))},
}
data = TensorDataset(torch.randn(32, 8, dtype=torch.bfloat16), torch.randint(0, 3, (32,)))
model_engine, optimizer, trainloader, schedule = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), training_data=data, config=config
)
for number, (inputs, labels) in enumerate(trainloader):
    outputs = model_engine(inputs.to(model_engine.device))
    loss = nn.functional.cross_entropy(outputs.float(), labels.to(model_engine.device))
    model_engine.backward(loss)
    model_engine.step()
    print("loss", loss.item(), "lr", schedule.get_last_lr() if model_engine.global_steps else None)
    if number % 2:
        model_engine.eval()
        with torch.no_grad():
            print("evaluation", model_engine(inputs).float().sum().item())
        model_engine.train()
model_engine.save_checkpoint("checkpoint", tag="last")
print("weights", sum(p.double().abs().sum().item() for p in model_engine.module.parameters()))
torch.distributed.destroy_process_group()
