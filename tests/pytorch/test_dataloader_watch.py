# SPDX-License-Identifier: Apache-2.0
"""`enable_dataloader`: the training loop is followed by the batches it takes."""

import logging
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from msprobe.pytorch.training.dataloader import watch_data_loaders

pytestmark = pytest.mark.torch


@pytest.fixture
def events():
    return []


@pytest.fixture
def watching(events):
    undo = watch_data_loaders(lambda: events.append("request"), lambda _: events.append("batch"))
    yield
    undo()


def loader(**options):
    return DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, **options)


def test_each_batch_is_announced_and_the_end_of_the_data_only_requested(events, watching):
    for (values,) in loader():
        events.append(values.tolist())
    assert events == [
        *("request", "batch", [0.0, 1.0]),
        *("request", "batch", [2.0, 3.0]),
        *("request", "batch", [4.0, 5.0]),
        "request",
    ]


def test_batches_and_random_numbers_are_those_of_an_unwatched_loader(events):
    def epoch():
        torch.manual_seed(3)
        batches = [values.tolist() for (values,) in loader(shuffle=True)]
        return batches, torch.rand(2).tolist()

    plain = epoch()
    undo = watch_data_loaders(lambda: events.append(1), lambda _: None)
    watched = epoch()
    undo()
    assert watched == plain
    assert len(events) == 4


def test_worker_processes_do_not_count(events, watching):
    with_workers = loader(num_workers=1)
    assert len(list(with_workers)) == 3
    assert events.count("batch") == 3


def test_a_loader_inside_a_dataset_is_no_step_of_its_own(events, watching):
    class Nested(IterableDataset):
        def __iter__(self):
            for (values,) in loader():
                yield values.sum()

    assert len(list(DataLoader(Nested(), batch_size=3))) == 1
    assert events == ["request", "batch", "request"]


def test_the_callbacks_can_end_the_run(events):
    def leave(_):
        raise SystemExit(0)

    undo = watch_data_loaders(lambda: events.append("request"), leave)
    try:
        with pytest.raises(SystemExit):
            list(loader())
    finally:
        undo()
    assert len(list(loader())) == 3


def test_errors_of_a_dataset_reach_the_loop_and_the_next_batch_counts_again(events, watching):
    class Faulty(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index == 0:
                raise ValueError("row 0")
            return index

    batches = iter(DataLoader(Faulty()))
    with pytest.raises(ValueError, match="row 0"):
        next(batches)
    assert next(batches).tolist() == [1]
    assert events == ["request", "request", "batch"]


def test_other_threads_are_left_alone_and_mentioned_once(events, watching, caplog):
    with caplog.at_level(logging.WARNING, logger="msprobe"):
        thread = threading.Thread(target=lambda: list(loader()))
        thread.start()
        thread.join()
    assert events == []
    assert len(caplog.records) == 1


def test_it_is_undone_by_identity(events):
    before = _BaseDataLoaderIter.__dict__["__next__"]
    undo = watch_data_loaders(lambda: None, lambda _: None)
    assert _BaseDataLoaderIter.__dict__["__next__"] is not before
    undo()
    undo()
    assert _BaseDataLoaderIter.__dict__["__next__"] is before
