# SPDX-License-Identifier: Apache-2.0
"""Arguments that the running program has parsed, wherever it keeps them.

Read are `argparse` namespaces, dataclasses of the program (as ``HfArgumentParser`` returns them),
``TrainingArguments`` of transformers, Hydra's and OmegaConf's trees, flags of absl, Megatron's
``get_args()``, trainers of Lightning, Accelerate's and DeepSpeed's settings; options in
``sys.argv`` that none of these knows; and the YAML and JSON files that these name.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from msprobe.dump.records import JsonTree
from msprobe.run_config.arguments import (
    flat_arguments,
    normal_name,
    same_value,
    settings_in_files,
)
from msprobe.run_config.command_options import options_of
from msprobe.run_config.live_objects import Kinds
from msprobe.run_config.user_code import is_users_module

_MEGATRON_MODULES: Final = ("megatron.training.global_vars", "megatron.training", "megatron")
# More objects of a dataclass are data, not settings.
_MOST_SETTINGS_OBJECTS: Final = 4
# Variables of launchers, as ACCELERATE_CONFIG_FILE and ACCELERATE_DEEPSPEED_CONFIG_FILE.
_NAMES_FILE: Final = re.compile(r"CONFIG(_FILE|_PATH)?$")
_LIGHTNING: Final = (
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "accumulate_grad_batches"),
    *("gradient_clip_val", "gradient_clip_algorithm", "precision", "num_devices", "num_nodes"),
    *("world_size", "limit_train_batches", "overfit_batches", "reload_dataloaders_every_n_epochs"),
)
_ACCELERATE: Final = (
    *("mixed_precision", "gradient_accumulation_steps", "split_batches", "even_batches"),
    *("num_processes", "distributed_type", "step_scheduler_with_optimizer", "dispatch_batches"),
)


class _Source(StrEnum):
    """Where a program keeps its arguments."""

    NAMESPACE = "namespace"
    DATACLASS = "dataclass"
    TREE = "tree"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    ABSL = "absl"


_CLASSES: Final = {
    "argparse.Namespace": _Source.NAMESPACE,
    "omegaconf.dictconfig.DictConfig": _Source.TREE,
    "lightning.pytorch.trainer.trainer.Trainer": _Source.LIGHTNING,
    "pytorch_lightning.trainer.trainer.Trainer": _Source.LIGHTNING,
    "accelerate.accelerator.Accelerator": _Source.ACCELERATE,
    "deepspeed.runtime.engine.DeepSpeedEngine": _Source.DEEPSPEED,
    "absl.flags._flagvalues.FlagValues": _Source.ABSL,
    "transformers.training_args.TrainingArguments": _Source.DATACLASS,
}

# Options of the test runner are none of the training in a test.
_PYTEST: Final = re.compile(r"(^|[/\\])(py\.?test(\.exe)?|pytest[/\\]__main__\.py)$")
_OPTION_OF_PYTEST: Final = "file_or_dir"


def kind_of_arguments(of_type: type) -> str | None:
    """Return the kind of the objects of a class that hold arguments; None for all others."""
    for one in of_type.__mro__:
        kind = _CLASSES.get(f"{one.__module__}.{one.__qualname__}")
        if kind is not None:
            return kind
    is_users = dataclasses.is_dataclass(of_type) and is_users_module(of_type.__module__)
    return _Source.DATACLASS if is_users else None


def program_arguments(objects: Kinds) -> dict[str, JsonTree]:
    """Return the arguments of the running program, flat, secrets hidden.

    A name that several objects give different values holds a list of them.

    Args:
        objects: what `live_objects` found with `kind_of_arguments`.
    """
    found: dict[str, list[JsonTree]] = {}
    readers: Mapping[str, Callable[[Any], Mapping[str, Any]]] = _READERS
    for kind, read in readers.items():
        owners = objects.get(kind, ())
        if kind == _Source.DATACLASS:
            owners = list(_few_of_a_kind(owners))
        elif kind == _Source.NAMESPACE:
            owners = [each for each in owners if not hasattr(each, _OPTION_OF_PYTEST)]
        for owner in owners:
            with suppress(Exception):  # objects of other libraries, some half made
                _add(found, flat_arguments(read(owner)))
    with suppress(Exception):
        _add(found, flat_arguments(_megatron_arguments()))
    known = {normal_name(name) for name in found}
    given = [] if _PYTEST.search(sys.argv[0]) else sys.argv[1:]
    options = flat_arguments(options_of(given).arguments)
    _add(found, {key: value for key, value in options.items() if normal_name(key) not in known})
    merged = {name: values[0] if len(values) == 1 else values for name, values in found.items()}
    named = {f"env.{name}": os.environ[name] for name in os.environ if _NAMES_FILE.search(name)}
    return {**merged, **settings_in_files({**merged, **named})}


def _add(found: dict[str, list[JsonTree]], arguments: Mapping[str, JsonTree]) -> None:
    for name, value in arguments.items():
        values = found.setdefault(name, [])
        if not any(same_value(value, other) for other in values):
            values.append(value)
            values.sort(key=str)


def _few_of_a_kind(owners: Sequence[Any]) -> Iterator[Any]:
    counts: dict[type, int] = {}
    for owner in owners:
        counts[type(owner)] = counts.get(type(owner), 0) + 1
    return (owner for owner in owners if counts[type(owner)] <= _MOST_SETTINGS_OBJECTS)


def _of_dataclass(owner: Any) -> Mapping[str, Any]:
    names = [one.name for one in dataclasses.fields(owner) if not one.name.startswith("_")]
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}


def _of_tree(owner: Any) -> Mapping[str, Any]:
    """Return a tree of OmegaConf as it is written; Hydra's own and inner ones are left out."""
    # While it composes, Hydra makes trees of its own settings; some of them are left.
    if owner._get_parent() is not None or {"hydra", "hydra_logging"} & set(owner.keys()):
        return {}
    container = sys.modules["omegaconf"].OmegaConf.to_container(owner, resolve=False)
    return container if isinstance(container, dict) else {}


def _attributes(names: Sequence[str], prefix: str) -> Callable[[Any], Mapping[str, Any]]:
    def read(owner: Any) -> Mapping[str, Any]:
        found = {}
        for name in names:
            # These are properties: some ask parts that are not there yet.
            with suppress(AttributeError, RuntimeError, ValueError, TypeError):
                found[f"{prefix}.{name}"] = getattr(owner, name)
        return found

    return read


def _of_deepspeed(owner: Any) -> Mapping[str, Any]:
    tree = getattr(getattr(owner, "_config", None), "_param_dict", None)
    return {"deepspeed": tree} if isinstance(tree, Mapping) else {}


def _of_namespace(owner: Any) -> Mapping[str, Any]:
    # Hydra's own options hold the overrides, whose outcome its tree has.
    return {} if hasattr(owner, "hydra_help") else vars(owner)


_READERS: Final[Mapping[str, Callable[[Any], Mapping[str, Any]]]] = {
    _Source.NAMESPACE: _of_namespace,
    _Source.DATACLASS: _of_dataclass,
    _Source.TREE: _of_tree,
    _Source.LIGHTNING: _attributes(_LIGHTNING, "Trainer"),
    _Source.ACCELERATE: _attributes(_ACCELERATE, "Accelerator"),
    _Source.DEEPSPEED: _of_deepspeed,
    _Source.ABSL: lambda flags: flags.flag_values_dict() if flags.is_parsed() else {},
}


def _megatron_arguments() -> Mapping[str, Any]:
    for name in _MEGATRON_MODULES:
        get_args = getattr(sys.modules.get(name), "get_args", None)
        if callable(get_args):
            arguments: Mapping[str, Any] = vars(get_args())  # asserts that they were parsed
            return arguments
    return {}
