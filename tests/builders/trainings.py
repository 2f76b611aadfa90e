# SPDX-License-Identifier: Apache-2.0
"""The same small training in every trainer: two micro batches a step, an evaluation after each.

A training saves a checkpoint after two steps, and may resume from one, stop early or break off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

STEPS, MICRO_BATCHES, SAVED_AFTER = 4, 2, 2


@dataclass(frozen=True, kw_only=True)
class Situation:
    """How a training runs.

    Attributes:
        folder: gets its checkpoint.
        recorded: the folder of the dump; None trains without msprobe.
        resumes: whether it goes on from the checkpoint in the folder.
        stops_after: number of steps after which it stops.
        breaks_at: number of the step whose last micro batch raises.
    """

    folder: Path
    recorded: Path | None = None
    resumes: bool = False
    stops_after: int = STEPS
    breaks_at: int = -1

    @property
    def settings(self) -> dict[str, Any]:
        return {"dump_path": self.recorded, "step": ["0-9"]}


class Planted(Exception):  # noqa: N818
    """What a training raises that breaks off."""


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 3))


def samples(count: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 4, generator=generator), torch.arange(count) % 3


class Loop:
    """A loop of the user's own around a library's model and optimizer.

    Attributes:
        layer: how the name of a layer begins that each micro batch calls once.
        first_resumed: number of micro batches in the first step after a resumption.
    """

    layer = "Module.0.Linear.forward"
    first_resumed = MICRO_BATCHES
    model: Any
    optimizer: Any

    def loss(self) -> torch.Tensor:
        inputs, labels = samples(6)
        return cross_entropy(self.model(inputs), labels)

    def micro_batch(self, number: int) -> None:
        (self.loss() / MICRO_BATCHES).backward()

    def micro_batches(self, *, breaks: bool) -> None:
        for number in range(MICRO_BATCHES):
            if breaks and number == MICRO_BATCHES - 1:
                raise Planted
            self.micro_batch(number)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            found = self.loss().item()
        self.model.train()
        return found

    def save(self, folder: Path) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / "state.pt")

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "state.pt", weights_only=False)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def weights(self) -> list[torch.Tensor]:
        return [_whole(each).detach().clone() for each in self.model.parameters()]


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(make: type[Loop], situation: Situation) -> list[torch.Tensor]:
    """Train in a loop under `record_training`; return the weights and what the evaluations found.

    The random state of a step depends on its number only, as in loops that save it.
    """
    from msprobe.integrations import record_training
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    loop = make()
    first = SAVED_AFTER if situation.resumes else 0
    if situation.resumes:
        loop.load(situation.folder)
    recording: AbstractContextManager[None] = nullcontext()
    if situation.recorded:
        recording = record_training(**situation.settings)
    found = []
    with recording:
        if situation.recorded and first:
            PrecisionDebugger.set_init_step(first)
        for step in range(first, situation.stops_after):
            torch.manual_seed(step)
            loop.micro_batches(breaks=step == situation.breaks_at)
            loop.update()
            found.append(torch.tensor(loop.evaluate()))
            if step == SAVED_AFTER - 1:
                loop.save(situation.folder)
    return [*loop.weights(), *found, torch.get_rng_state()]


class Plain(Loop):
    def __init__(self) -> None:
        self.model = layers()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)


class Timm(Loop):
    layer = "Module.blocks.0.attn.qkv.Linear.forward"

    def __init__(self) -> None:
        from timm.models.vision_transformer import VisionTransformer
        from timm.optim import create_optimizer_v2
        from timm.scheduler import CosineLRScheduler

        sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
        self.model = VisionTransformer(**sizes, num_classes=3, proj_drop_rate=0.1)
        self.optimizer = create_optimizer_v2(self.model, opt="adamw", lr=0.01)
        self.schedule, self.updates = CosineLRScheduler(self.optimizer, t_initial=4), 0

    def loss(self) -> torch.Tensor:
        images = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        return cross_entropy(self.model(images), torch.arange(3))

    def update(self) -> None:
        super().update()
        self.updates += 1
        self.schedule.step_update(self.updates)


class Diffusers(Loop):
    layer = "Module.conv_in.Conv2d.forward"

    def __init__(self) -> None:
        from diffusers import DDPMScheduler, UNet2DModel

        self.model = UNet2DModel(
            sample_size=8,
            block_out_channels=(8, 8),
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D"),
        )
        self.noise = DDPMScheduler(num_train_timesteps=10)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def loss(self) -> torch.Tensor:
        noise, times = torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,))
        noisy = self.noise.add_noise(torch.ones(2, 3, 8, 8), noise, times)
        return nn.functional.mse_loss(self.model(noisy, times).sample, noise)

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder / "unet")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        other = type(self.model).from_pretrained(folder / "unet")
        self.model.load_state_dict(other.state_dict())
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt"))


def tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=31, num_attention_heads=2, attention_dropout=0.1, **sizes)
    )


class Peft(Loop):
    layer = "Module.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.Linear.forward"

    def __init__(self) -> None:
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(
            r=2, lora_dropout=0.1, target_modules=["q_proj"], task_type="CAUSAL_LM"
        )
        self.model = get_peft_model(tiny_llama(), adapter)
        self.model.train()
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.01)

    def loss(self) -> torch.Tensor:
        tokens = torch.arange(12).reshape(2, 6)
        return self.model(input_ids=tokens, labels=tokens).loss

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder / "adapter")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        state = load_file(folder / "adapter" / "adapter_model.safetensors")
        set_peft_model_state_dict(self.model, state)
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt"))


@contextlib.contextmanager
def one_process_group() -> Iterator[None]:
    """Make a group of this process alone; no port is taken."""
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    with patch.dict(os.environ, names):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


class Fsdp1(Loop):
    layer = "Module._fsdp_wrapped_module.0.Linear.forward"

    def __init__(self) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        self.model = FullyShardedDataParallel(
            layers(), use_orig_params=True, device_id=torch.device("cpu")
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def micro_batch(self, number: int) -> None:
        is_last = number == MICRO_BATCHES - 1
        with nullcontext() if is_last else self.model.no_sync():
            super().micro_batch(number)


class Fsdp2(Loop):
    def __init__(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        self.model = layers()
        for part in (self.model[0], self.model[3], self.model):
            fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def micro_batch(self, number: int) -> None:
        self.model.set_requires_gradient_sync(number == MICRO_BATCHES - 1)
        super().micro_batch(number)

    def save(self, folder: Path) -> None:
        from torch.distributed import checkpoint

        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoint.save(state, checkpoint_id=folder / "dcp", no_dist=True)
        torch.save(state["optimizer"], folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        from torch.distributed import checkpoint

        state = {"model": self.model.state_dict()}
        checkpoint.load(state, checkpoint_id=folder / "dcp", no_dist=True)
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=False))


class OnCpu(TorchFunctionMode):
    """Has the CPU answer where Megatron-core asks for CUDA by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return args[0] if func is torch.Tensor.cuda else func(*args, **kwargs)


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    devices = {"current_device": lambda: "cpu", "synchronize": lambda *_: None}
    with OnCpu(), patch.multiple(torch.cuda, **devices):
        yield


class Megatron(Loop):
    """A schedule of Megatron-core with its optimizer, which keeps gradients in ``main_grad``.

    Its distributed optimizer refuses parameters that are not on a GPU.
    """

    layer = "Module.module.linear_fc1.ColumnParallelLinear.forward"

    def __init__(self) -> None:
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer.enums import ModelType
        from megatron.core.transformer.mlp import MLP
        from megatron.core.transformer.transformer_config import TransformerConfig

        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel()
        config = TransformerConfig(
            num_layers=1,
            hidden_size=8,
            num_attention_heads=2,
            use_cpu_initialization=True,
            bias_activation_fusion=False,
            finalize_model_grads_func=finalize_model_grads,
        )
        inner = MLP(config, get_mlp_module_spec(use_te=False).submodules)
        inner.config, inner.share_embeddings_and_output_weights = config, False
        inner.set_input_tensor = lambda _: None
        inner.model_type = ModelType.encoder_or_decoder
        settings = OptimizerConfig(optimizer="adam", lr=0.01, clip_grad=0.0)
        with on_cpu():
            self.model = DistributedDataParallel(config, DistributedDataParallelConfig(), inner)
            self.optimizer = get_megatron_optimizer(settings, [self.model])

    def run(self, *, forward_only: bool, breaks: bool = False) -> list[Any]:
        from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

        def forward_step(numbers: Iterator[int], model: nn.Module) -> tuple[torch.Tensor, Any]:
            if next(numbers) == MICRO_BATCHES - 1 and breaks:
                raise Planted
            generator = torch.Generator().manual_seed(2)
            output, _ = model(torch.randn(4, 2, 8, generator=generator))
            output = nn.functional.dropout(output, 0.1, self.model.training)
            return output, lambda found: ((loss := found.square().mean()), {"loss": loss.detach()})

        with on_cpu():
            return get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iter(range(MICRO_BATCHES)),
                model=self.model,
                num_microbatches=MICRO_BATCHES,
                seq_length=4,
                micro_batch_size=2,
                forward_only=forward_only,
            )

    def micro_batches(self, *, breaks: bool) -> None:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        self.run(forward_only=False, breaks=breaks)

    def update(self) -> None:
        with on_cpu():
            assert self.optimizer.step()[0]

    def evaluate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            found = self.run(forward_only=True)
        self.model.train()
        return sum(each["loss"].item() for each in found)


class DeepSpeed(Loop):
    """An engine of ZeRO 2, which divides losses and steps after the last micro batch by itself."""

    layer = "Module.module.0.Linear.forward"

    def __init__(self) -> None:
        import deepspeed
        from deepspeed.utils import groups

        groups._release_process_group_references(group=None)  # of an earlier training
        # Its collectives in shared memory are compiled at first use, which takes a minute.
        with patch("deepspeed.comm.torch.build_shm_op", lambda: None):
            deepspeed.init_distributed("gloo", dist_init_required=False)
        inner = layers()
        optimizer = torch.optim.AdamW(inner.parameters(), lr=0.01)
        settings = {
            "train_micro_batch_size_per_gpu": 6,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2},
        }
        self.model, *_ = deepspeed.initialize(model=inner, optimizer=optimizer, config=settings)

    def loss(self) -> torch.Tensor:
        inputs, labels = samples(6)
        return cross_entropy(self.model(inputs.bfloat16()).float(), labels)

    def micro_batch(self, number: int) -> None:
        self.model.backward(self.loss())
        self.model.step()

    def update(self) -> None:
        """Do nothing: the engine has stepped."""

    def save(self, folder: Path) -> None:
        self.model.save_checkpoint(str(folder), tag="last")

    def load(self, folder: Path) -> None:
        self.model.load_checkpoint(str(folder), tag="last")


LOOPS: dict[str, tuple[str, type[Loop]]] = {
    "plain": ("torch", Plain),
    "peft": ("peft", Peft),
    "timm": ("timm", Timm),
    "diffusers": ("diffusers", Diffusers),
    "fsdp1": ("torch", Fsdp1),
    "fsdp2": ("torch", Fsdp2),
    "megatron": ("megatron", Megatron),
    "deepspeed": ("deepspeed", DeepSpeed),
}
"""The package that a loop needs, and the loop."""

GROUPED = (Fsdp1, Fsdp2, Megatron, DeepSpeed)
"""Loops that need a process group."""
