# SPDX-License-Identifier: Apache-2.0
"""`ConfigChecker`: collect start settings, inputs and weights from inside a training script.

    from msprobe.config_check import ConfigChecker

    ConfigChecker.apply_patches("pytorch")                  # first thing in the script
    ...
    ConfigChecker(model, ["train.sh"], "./run_a.zip")       # once the model is made

`msprobe config_check -c run_a.zip run_b.zip` compares two such files. Scripts that import
``msprobe.core.config_check`` find the same class there.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msprobe.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from msprobe.run_config.observing import RunObserver

# Framework → the module that knows how to observe it.
_HOOKS: Final = {
    "pytorch": "msprobe.pytorch.training.run_config_hooks",
    "mindspore": "msprobe.mindspore.run_config_hooks",
}


class ConfigChecker:
    """Writes a pack: environment, packages, system, arguments; and from the model's calls, data,
    weights, buffers, random functions and generators. The first call also yields settings of the
    running training: arguments that the program has parsed, modules, optimizers, schedules, data
    loaders, flags.

    Every call of the model is a *micro step*. Before each, the inputs, parameters and buffers are
    summarised (maximum, minimum, mean, norm, checksum). This reads all of them and, on an
    accelerator, waits for the device and copies the bytes to the host for the checksum: meant for
    the first few steps. Nothing that the program computes is changed, no random number is drawn.

    Args:
        model: the model, or a list of its parts (the first one's calls count); None to collect
            only what needs no model.
        shell_path: the script that starts the training, or several, and YAML or JSON files with
            arguments.
        output_zip_path: file to write; an older one is replaced. Rank r of several writes
            ``{name}.rank{r}.zip`` beside it.
        fmk: the framework, ``pytorch`` or ``mindspore``.
        max_steps: micro steps to look at; None for all.

    Raises:
        ConfigError: an argument has a wrong type.
        ConfigFileError: a file of `shell_path` cannot be read.
        UnsupportedError: the framework cannot be watched, or not in its present mode.
        ReportWriteError: the file cannot be written.
    """

    def __init__(
        self,
        model: Any = None,
        shell_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        output_zip_path: str | os.PathLike[str] = "./config_check_pack.zip",
        fmk: str = "pytorch",
        *,
        max_steps: int | None = None,
    ) -> None:
        """Collect the settings known by now, and the rest when the model is called."""
        from pathlib import Path

        from msprobe.run_config.collecting import collect_static
        from msprobe.run_config.model_watch import write_settings
        from msprobe.run_config.pack import PackWriter

        if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
            rule = "a number of 1 or more, or None"
            raise ConfigError("max_steps", max_steps, rule, source="ConfigChecker()")
        observer = _observer(fmk)
        rank, world_size = observer.framework.rank_and_world_size()
        writer = PackWriter(Path(output_zip_path), rank=rank, world_size=world_size)
        collect_static(writer, _paths(shell_path), extra_system=observer.framework.facts())
        if model is not None:
            observer.watch_model(model, writer, rank=rank, max_steps=max_steps)
        else:
            framework = observer.framework
            write_settings(framework, (), writer, rank, framework.with_grad())

    @staticmethod
    def apply_patches(fmk: str = "pytorch") -> None:
        """Record calls of random functions from now on: Python's, NumPy's and the framework's.

        Call it before the script imports or calls any of them. Functions are replaced by ones that
        note the place of the call and pass it on; `remove_patches` puts them back. Names that were
        imported from their modules before (``from random import random``) are not seen.

        Raises:
            UnsupportedError: the framework is not supported here.
        """
        _observer(fmk).watch_random_calls()

    @staticmethod
    def remove_patches(fmk: str = "pytorch") -> None:
        """Undo `apply_patches`, and stop watching models."""
        _observer(fmk).stop()


@functools.cache
def _observer(fmk: str) -> RunObserver:
    """Return this process's one observer for a framework; it holds the undos."""
    if fmk not in _HOOKS:
        known = ", ".join(_HOOKS)
        raise UnsupportedError(
            f'ConfigChecker: fmk is {fmk!r}; use {known}. "msprobe '
            'config_check -d" collects environment, packages, system and arguments of any run'
        )
    # Found by a table, so that nothing here depends on a framework.
    observer: RunObserver = importlib.import_module(_HOOKS[fmk]).make_observer()
    return observer


def _paths(shell_path: Any) -> list[Any]:
    from pathlib import Path

    if shell_path is None:
        return []
    if isinstance(shell_path, (str, os.PathLike)):
        return [Path(shell_path)]
    if isinstance(shell_path, Sequence) and all(
        isinstance(path, (str, os.PathLike)) for path in shell_path
    ):
        return [Path(path) for path in shell_path]
    raise ConfigError(
        "shell_path", shell_path, "a path or a list of paths", source="ConfigChecker()"
    )
