# SPDX-License-Identifier: Apache-2.0
"""Numbers of a dump or a comparison as scalars over steps: TensorBoard, W&B, MLflow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.dump import layout
from msprobe.errors import UnsupportedError

if TYPE_CHECKING:
    import polars as pl

STATISTICS: Final = ("norm", "max", "min", "mean", "nan_count")
"""Columns of a dump's table that become scalars."""

DIFFERENCES: Final = ("error", "max_abs_err", "max_rel_err", "relative_l2", "cosine")
"""Columns of a comparison's table that become scalars."""

_REFUSED_BY_MLFLOW: Final = re.compile(r"[^\w. :/-]")


@dataclass(frozen=True, slots=True)
class StepScalars:
    """The scalars of one step and rank.

    Attributes:
        run: name of the rank's folder; ``rank`` without ranks.
        step: number of the step.
        values: tag, ``{record}/{slot}/{column}``, and value.
    """

    run: str
    step: int
    values: Mapping[str, float]


def scalars_of(frame: pl.DataFrame, columns: Sequence[str]) -> Iterator[StepScalars]:
    """Yield the scalars of a table, rank by rank, with ascending steps.

    Args:
        frame: has the columns ``step``, ``rank``, ``record`` or ``operation``, and ``slot``.
        columns: the columns to take; values that are absent make no scalar.
    """
    name = "record" if "record" in frame.columns else "operation"
    for (rank, step), part in frame.sort("rank", "step", maintain_order=True).group_by(
        "rank", "step", maintain_order=True
    ):
        values = {
            f"{record}/{slot}/{column}" if slot else f"{record}/{column}": float(value)
            for record, slot, *numbers in part.select(name, "slot", *columns).iter_rows()
            for column, value in zip(columns, numbers, strict=True)
            if value is not None
        }
        is_alone = rank in (None, "", layout.rank_folder(None))
        run = layout.rank_folder(None) if is_alone else f"rank{rank}"
        yield StepScalars(run, int(str(step)), values)


def write_tensorboard(scalars: Iterator[StepScalars], folder: Path) -> int:
    """Write event files, a folder for each rank; return how many scalars they hold.

    Raises:
        UnsupportedError: TensorBoard is not installed.
    """
    writers: dict[str, Any] = {}
    count = 0
    for each in scalars:
        if each.run not in writers:
            writers[each.run] = event_writer(folder / each.run)
        put_event(writers[each.run], each.values, step=each.step)
        count += len(each.values)
    for writer in writers.values():
        writer.close()
    return count


def event_writer(folder: Path, *, begins: int = 0) -> Any:
    """Return a writer of TensorBoard's event files.

    Args:
        folder: gets the file.
        begins: above 0, what other files of the folder hold from this step on counts no longer.

    Raises:
        UnsupportedError: TensorBoard is not installed.
    """
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise UnsupportedError(
            "TensorBoard files need the package tensorboard: pip install tensorboard"
        ) from error
    writer = EventFileWriter(str(folder))
    if begins:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        session = SessionLog(status=SessionLog.START)
        writer.add_event(Event(step=begins, session_log=session))
    return writer


def put_event(
    writer: Any, values: Mapping[str, float], *, step: int, time: float | None = None
) -> None:
    """Write the scalars of one step as an event."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    found = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    writer.add_event(Event(wall_time=time or 0.0, step=step, summary=Summary(value=found)))


def write_wandb(scalars: Iterator[StepScalars], project: str) -> int:
    """Write a run of W&B for each rank, as the environment of wandb says; return their scalars.

    Raises:
        UnsupportedError: wandb is not installed.
    """
    runs: dict[str, Any] = {}
    count = 0
    for each in scalars:
        if each.run not in runs:
            for run in runs.values():
                run.finish()
            runs[each.run] = wandb_run(name=each.run, project=project)
        runs[each.run].log(dict(each.values), step=each.step)
        count += len(each.values)
    for run in runs.values():
        run.finish()
    return count


def wandb_run(**facts: Any) -> Any:
    """Return a new run of W&B, beside one that the program may have.

    Args:
        facts: arguments of `wandb.init`.

    Raises:
        UnsupportedError: wandb is not installed.
    """
    try:
        import wandb
    except ImportError as error:
        raise UnsupportedError(
            "scalars for W&B need the package wandb: pip install wandb"
        ) from error
    return wandb.init(reinit="create_new", **facts)


def write_mlflow(scalars: Iterator[StepScalars], experiment: str) -> int:
    """Write a run of MLflow for each rank, as the environment of mlflow says; return their scalars.

    Characters of tags that MLflow refuses become ``_``; values that are not finite are left out.

    Raises:
        UnsupportedError: mlflow is not installed, or refuses to write where it is told to.
    """
    try:
        import mlflow
    except ImportError as error:
        raise UnsupportedError(
            "scalars for MLflow need the package mlflow: pip install mlflow"
        ) from error
    try:
        return _log_metrics(mlflow, scalars, experiment)
    except mlflow.exceptions.MlflowException as error:
        text = str(error).strip().splitlines()[0]
        raise UnsupportedError(f"MLflow cannot write (see MLFLOW_TRACKING_URI): {text}") from error


def _log_metrics(mlflow: Any, scalars: Iterator[StepScalars], experiment: str) -> int:
    mlflow.set_experiment(experiment)
    client = mlflow.MlflowClient()
    found = mlflow.get_experiment_by_name(experiment)
    runs: dict[str, str] = {}
    count = 0
    for each in scalars:
        if each.run not in runs:
            run = client.create_run(found.experiment_id, run_name=each.run)
            runs[each.run] = run.info.run_id
        for tag, value in each.values.items():
            if math.isfinite(value):
                key = _REFUSED_BY_MLFLOW.sub("_", tag)
                client.log_metric(runs[each.run], key, value, step=each.step)
                count += 1
    for run_id in runs.values():
        client.set_terminated(run_id)
    return count
