# SPDX-License-Identifier: Apache-2.0
"""Settings of modules, optimizers, schedulers, gradient scalers and data loaders, as plain text."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from msprobe.pytorch.training.model_contents import Prefixed
from msprobe.pytorch.training.optimizer_steps import described, options_of
from msprobe.pytorch.training.torch_settings import torch_settings
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.replay.module_settings import OWN_CLASS
from msprobe.run_config.arguments import flat_arguments
from msprobe.run_config.collecting import collect_settings
from msprobe.run_config.live_objects import (
    Kinds,
    described_settings,
    live_objects,
    setting_text,
)
from msprobe.run_config.program_arguments import kind_of_arguments
from msprobe.run_config.user_code import is_users_module

Settings = dict[str, str]

_KINDS: Final[Mapping[str, type]] = {
    "optimizer": Optimizer,
    "schedule": LRScheduler,
    "scaler": GradScaler,
    "loader": DataLoader,
    "loss": nn.modules.loss._Loss,
}
# Objects of these classes are seen elsewhere, or hold no settings.
_NO_OBJECTS: Final = (nn.Module, Tensor, Enum, BaseException, type, Namespace)
_MOST_OBJECTS: Final = 4
# Attributes under which models keep their settings as an object of its own.
_HOLDERS: Final = frozenset(("config", "cfg", "hparams", "args"))
# They change while the model trains.
_COUNTERS: Final = frozenset(("training", "num_batches_tracked"))
_TOLD_APART: Final = _COUNTERS | _HOLDERS
_MAX_ELEMENTS: Final = 1 << 20
_SCALER: Final = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
_OPTIMIZER: Final = frozenset(("defaults", "param_groups", "state", "step", "zero_grad"))
# Values of data, which the model is given.
_SEQUENCES: Final = frozenset(("tensors", "data", "samples", "data_source", "sampler", "generator"))
_LOADER: Final = frozenset(
    ("dataset", "sampler", "batch_sampler", "generator", "pin_memory_device")
)


def kind_of_training_object(of_type: type) -> str | None:
    """Return the kind of the objects of a class that have such settings; None for all others."""
    known = next((kind for kind, base in _KINDS.items() if issubclass(of_type, base)), None)
    is_users = known is None and not issubclass(of_type, _NO_OBJECTS)
    return "object" if is_users and is_users_module(of_type.__module__) else known


def fixed_settings(models: Sequence[Prefixed]) -> dict[str, str]:
    """Return what is the same for the whole run: versions, environment, arguments, modules …

    Args:
        models: the models with their prefixes.
    """
    found = live_objects(kind_of_arguments, kind_of_training_object)
    # Of objects of any class a verdict would not know what they are.
    objects = {kind: some for kind, some in found.items() if kind != "object"}
    parts = training_settings(models, objects)
    # Each step of an optimizer has a record with the numbers that it has then.
    del parts["optimizer"]
    return {
        **torch_settings(),
        **collect_settings(objects),
        **{name: text for part in parts.values() for name, text in part.items()},
    }


def training_settings(models: Sequence[Prefixed], objects: Kinds) -> dict[str, Settings]:
    """Return the settings of a training by part: modules, optimizer, schedule, scaler, loader.

    Args:
        models: the models with their prefixes.
        objects: what `live_objects` found with `kind_of_training_object`.
    """
    plain = [model for _, model in models]
    optimizers = _optimizers_of(plain, objects.get("optimizer", ()))
    groups = {id(_groups_of(one)) for one in optimizers}
    schedules = [
        one
        for one in objects.get("schedule", ())
        if id(_groups_of(getattr(one, "optimizer", None))) in groups
    ]
    inside = {id(one) for model in plain for one in _modules_of(model)}
    losses = [one for one in objects.get("loss", ()) if id(one) not in inside]
    scalers = [one for one in objects.get("scaler", ()) if one.is_enabled()]
    return {
        "modules": module_settings(models) | _numbered("loss", _of_loss, losses, once=True),
        "optimizer": _numbered("optimizer", _of_optimizer, optimizers),
        "schedule": _numbered("schedule", _of_schedule, schedules),
        "scaler": _numbered("scaler", _of_scaler, scalers),
        "loader": _numbered("loader", _of_loader, objects.get("loader", ())),
        "objects": _of_objects(objects.get("object", ())),
    }


def _of_objects(owners: Iterable[Any]) -> Settings:
    """Return the settings of objects of the user's classes; of many of a class, they are data."""
    by_class: dict[str, list[Any]] = {}
    for owner in owners:
        by_class.setdefault(type(owner).__qualname__, []).append(owner)
    found: Settings = {}
    for name, few in sorted(by_class.items()):
        if len(few) <= _MOST_OBJECTS:
            found |= _numbered(f"object.{name}", lambda one: dict(_described(one)), few)
    return found


def module_settings(models: Sequence[Prefixed]) -> Settings:
    """Return class, ``extra_repr`` and plain attributes of each module, and tied parameters."""
    found: Settings = {}
    held: set[int] = set()
    first_names: dict[int, str] = {}
    for prefix, model in models:
        place = f"module.{prefix}".removesuffix(".")
        try:
            found |= _of_modules(model, place, held)
            found |= _tied_parameters(model, place, first_names)
        except Exception as exc:  # noqa: BLE001 - a model may refuse to be looked through
            found[place] = f"{type(model).__name__}: unreadable, {type(exc).__name__}"
    return found


def _of_modules(model: nn.Module, prefix: str, known: set[int]) -> Settings:
    found: Settings = {}
    for path, module in model.named_modules():
        name = f"{prefix}.{path}" if path else prefix
        shown = f"{type(module).__name__}({_extra_repr(module)})"
        found[name] = shown
        if _is_namesake(type(module)):
            found[f"{name}.{OWN_CLASS}"] = f"{type(module).__module__}.{type(module).__qualname__}"
        for key, text in _described(module, without=_TOLD_APART):
            if f"{key}=" not in shown:
                found[f"{name}.{key}"] = text
        found |= {f"{name}.hooks.{kind}": text for kind, text in _hooks_of(module)}
        for key, held in vars(module).items():
            of_type: type = type(held)
            if (key in _HOLDERS or _is_for_settings(of_type)) and id(held) not in known:
                known.add(id(held))
                found |= {f"{name}.{key}.{inner}": text for inner, text in _held(held)}
    return found


def _hooks_of(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the functions that see the module's calls, other than ours."""
    for kind in ("forward_pre", "forward", "backward_pre", "backward"):
        hooks = vars(module).get(f"_{kind}_hooks") or {}
        texts = [
            setting_text(hook) or type(hook).__qualname__
            for hook in hooks.values()
            if not getattr(hook, "__module__", type(hook).__module__).startswith("msprobe")
        ]
        if texts:
            yield kind, ", ".join(texts)


def _described(owner: Any, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    return described_settings(owner, _array_text, without=without)


def _array_text(value: Any) -> str | None:
    """Return type, shape and checksum of a tensor of the processor, or of a NumPy array."""
    kind = type(value)
    if isinstance(value, Tensor):
        is_near = value.device.type == "cpu" and value.layout is torch.strided
        digest = crc32_hex(value) if is_near and value.numel() <= _MAX_ELEMENTS else "not read"
    elif isinstance(value, np.ndarray | np.generic):
        is_plain = not value.dtype.hasobject and value.size <= _MAX_ELEMENTS
        digest = f"{crc32(value.tobytes()):08x}" if is_plain else "not read"
    elif isinstance(value, torch.Generator):
        return f"Generator, seed {value.initial_seed()}"
    elif kind in (torch.dtype, torch.device, torch.Size):
        return str(value)
    else:
        return None
    return f"{kind.__name__} {value.dtype} {tuple(value.shape)} {digest}"


def _is_namesake(of_type: type[nn.Module]) -> bool:
    """Return whether a class of another library has a name of a class in `torch.nn`."""
    return getattr(nn, of_type.__name__, of_type) is not of_type


def _tied_parameters(model: nn.Module, prefix: str, first_names: dict[int, str]) -> Settings:
    found: Settings = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(parameter), path)
        if first != path:
            found[f"{prefix}.{path}"] = f"tied to {first}"
    return found


@lru_cache(maxsize=1024)
def _is_for_settings(of_type: type) -> bool:
    return is_dataclass(of_type) or issubclass(of_type, SimpleNamespace | Namespace)


def _held(owner: Any) -> Iterator[tuple[str, str]]:
    tree = owner if isinstance(owner, Mapping) else getattr(owner, "__dict__", {})
    public = {key: one for key, one in tree.items() if not str(key).startswith("_")}
    attention = getattr(owner, "_attn_implementation", None)  # of configurations of transformers
    public |= {"attn_implementation": attention} if isinstance(attention, str) else {}
    for name, value in flat_arguments(public).items():
        if value is not None:
            yield name, str(value)


def _extra_repr(module: nn.Module) -> str:
    try:
        return " ".join(module.extra_repr().split())
    except Exception:  # noqa: BLE001 - code of the user's, which may expect another moment
        return ""


def _optimizers_of(models: Sequence[nn.Module], found: Iterable[Optimizer]) -> list[Optimizer]:
    """Return the optimizers of these models: others may be left from an earlier run.

    An optimizer that wraps another one has its very groups; the inner one is told.
    """
    parameters = {id(one) for model in models for one in _parameters_of(model)}
    by_groups: dict[int, Optimizer] = {}
    for optimizer in found:
        groups = _groups_of(optimizer)
        if any(id(one) in parameters for group in groups for one in group["params"]):
            known = by_groups.get(id(groups))
            if known is None or vars(optimizer).get("param_groups") is groups:
                by_groups[id(groups)] = optimizer
    return list(by_groups.values())


def _parameters_of(model: nn.Module) -> list[nn.Parameter]:
    try:
        return list(model.parameters())
    except Exception:  # noqa: BLE001 - a model may refuse to be looked through
        return []


def _modules_of(model: nn.Module) -> list[nn.Module]:
    try:
        return list(model.modules())
    except Exception:  # noqa: BLE001 - a model may refuse to be looked through
        return []


def _groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the groups of an optimizer; none of one that is half made."""
    try:
        groups: list[dict[str, Any]] = optimizer.param_groups
    except Exception:  # noqa: BLE001 - other libraries' objects
        return []
    return groups


def _numbered(
    kind: str, read: Callable[[Any], Settings], owners: Iterable[Any], *, once: bool = False
) -> Settings:
    """Return the settings of several objects in one; the order of objects has no meaning.

    Args:
        kind: the first part of the names.
        read: returns the settings of an object.
        owners: the objects.
        once: whether objects with the same settings count once.
    """
    settings: list[Settings] = []
    for owner in owners:
        try:
            settings.append(_class_of(owner) | read(owner))
        except Exception as exc:  # noqa: BLE001 - other libraries' objects, some half made
            settings.append(_class_of(owner) | {"unreadable": type(exc).__name__})
    ordered = sorted(settings, key=lambda one: list(one.items()))
    if once:
        ordered = [one for place, one in enumerate(ordered) if one not in ordered[:place]]
    return {
        f"{kind}.{number}.{name}": text
        for number, one in enumerate(ordered)
        for name, text in one.items()
    }


def _class_of(owner: object) -> Settings:
    return {"class": f"{type(owner).__module__}.{type(owner).__qualname__}"}


def _of_optimizer(optimizer: Optimizer) -> Settings:
    found: Settings = {}
    for number, group in enumerate(optimizer.param_groups):
        options = {key: described(value) for key, value in options_of(group).items()}
        options["parameters"] = len(group["params"])
        found |= {f"group.{number}.{key}": str(value) for key, value in options.items()}
    return found | dict(_described(optimizer, without=_OPTIMIZER))


def _of_schedule(schedule: LRScheduler) -> Settings:
    found = dict(_described(schedule, without=frozenset(("optimizer", "verbose"))))
    for name in ("_milestones", "_schedule_phases"):  # of SequentialLR, OneCycleLR
        text = setting_text(getattr(schedule, name, None))
        found |= {} if text is None else {name.removeprefix("_"): text}
    return found


def _of_loss(loss: nn.Module) -> Settings:
    found = dict(_described(loss, without=_COUNTERS))
    for name, buffer in loss.named_buffers():
        if buffer.device.type == "cpu":  # weights of classes
            found[name] = setting_text(buffer.flatten().tolist()) or ""
    return found


def _of_scaler(scaler: GradScaler) -> Settings:
    return {name: str(getattr(scaler, f"_{name}", None)) for name in _SCALER}


def _of_loader(loader: DataLoader[Any]) -> Settings:
    found = dict(_described(loader, without=_LOADER))
    for name in ("dataset", "sampler", "batch_sampler"):
        part = getattr(loader, name, None)
        found[name] = type(part).__name__
        inner = _described(part, without=_SEQUENCES)
        found |= {f"{name}.{key}": text for key, text in inner}
    for key, value in getattr(loader.sampler, "__dict__", {}).items():
        if isinstance(value, Tensor) and value.device.type == "cpu":  # weights of samples
            found[f"sampler.{key}"] = setting_text(value.flatten().tolist()) or ""
    found["size"] = _size(loader.dataset)
    if loader.generator is not None:
        found["generator_seed"] = str(loader.generator.initial_seed())
    return found


def _size(dataset: Any) -> str:
    try:
        return str(len(dataset))
    except Exception:  # noqa: BLE001 - many have no length, and say so in their own way
        return setting_text(type(dataset)) or ""
