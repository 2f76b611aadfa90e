# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's training loop: a `GPTModel`, a schedule of `pipeline_parallel`, its optimizer.

With two ranks the model is a pipeline of two stages, with two chunks each (interleaved); with
DISTRIBUTED_OPTIMIZER=1 both hold all of it and share the optimizer's state. Megatron-core asks for
CUDA by name; without one, the first lines let the CPU answer.
"""

import os
from contextlib import nullcontext

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


if not torch.cuda.is_available():
    OnCpu().__enter__()
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import (  # noqa: E402
    CudaRNGStatesTracker,
    model_parallel_cuda_manual_seed,
)
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

for name, value in {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29518",
}.items():
    os.environ.setdefault(name, value)
torch.distributed.init_process_group("gloo")
is_shared = os.environ.get("DISTRIBUTED_OPTIMIZER") == "1"
ranks = 1 if is_shared else torch.distributed.get_world_size()
chunks = 2 if ranks > 1 else 1
parallel_state.initialize_model_parallel(
    pipeline_model_parallel_size=ranks,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
)
torch.manual_seed(1)
if torch.cuda.is_available():
    model_parallel_cuda_manual_seed(1)
else:
    CudaRNGStatesTracker.fork = lambda *_: nullcontext()
config = TransformerConfig(
    num_layers=4,
    hidden_size=16,
    num_attention_heads=2,
    use_cpu_initialization=True,
    pipeline_dtype=torch.float32,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    pipeline_model_parallel_size=ranks,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    bias_activation_fusion=False,
    gradient_accumulation_fusion=False,
)


def chunk(number):
    where = {"vp_stage": number} if chunks > 1 else {}
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=32,
        max_sequence_length=8,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, **where),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, **where),
        **where,
    )
    shared = DistributedDataParallelConfig(use_distributed_optimizer=is_shared)
    return DistributedDataParallel(config, shared, model)


model = [chunk(number) for number in range(chunks)]
config.finalize_model_grads_func = finalize_model_grads
settings = OptimizerConfig(
    optimizer="adam", lr=1e-2, clip_grad=0.0, use_distributed_optimizer=is_shared
)
optimizer = get_megatron_optimizer(settings, model)


def batches():
    generator = torch.Generator().manual_seed(2)
    while True:
        tokens = torch.randint(0, 32, (2, 9), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def forward_step(data_iterator, model):
    tokens, labels = next(data_iterator)
    positions = torch.arange(8).expand(2, 8)
    mask = torch.triu(torch.ones(1, 1, 8, 8, dtype=torch.bool), 1)
    output = model(tokens, positions, mask, labels=labels)

    def loss_func(losses):
        loss = losses.float().mean()
        return loss, {"lm loss": loss.detach()}

    return output, loss_func


data = [batches() for _ in model]
forward_backward = get_forward_backward_func()
for _step in range(4):
    for part in model:
        part.zero_grad_buffer()
    optimizer.zero_grad()
    losses = forward_backward(
        forward_step_func=forward_step,
        data_iterator=data if chunks > 1 else data[0],
        model=model if chunks > 1 else model[0],
        num_microbatches=4,
        seq_length=8,
        micro_batch_size=2,
        decoder_seq_length=8,
        forward_only=False,
    )
    successful, grad_norm, _ = optimizer.step()
    print("step", successful, grad_norm, [entry["lm loss"].item() for entry in losses], flush=True)
print("weights", sum(p.double().abs().sum().item() for part in model for p in part.parameters()))
torch.distributed.destroy_process_group()
