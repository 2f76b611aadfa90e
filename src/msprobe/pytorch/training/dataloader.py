# SPDX-License-Identifier: Apache-2.0
"""Following a training loop by its data loader: each new batch is a new step."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

from msprobe.errors import UnsupportedError

logger = logging.getLogger(__name__)


def watch_data_loaders(
    on_request: Callable[[], None], on_batch: Callable[[int], None]
) -> Callable[[], None]:
    """Call back around each batch that a `DataLoader` hands to the training loop.

    Only iteration in this thread and process counts: a loop that prefetches in a thread of its own
    cannot be followed, which is said once. A loader that is read by another loader's dataset is no
    step of its own. Whatever the callbacks raise reaches the loop: that is how a run ends early.

    Args:
        on_request: the loop asks for its next batch, so whatever it did with the last one is over.
        on_batch: the batch is there and about to be handed out; not called when there is none left.
            It gets the number of the batch in this pass over the data.

    Returns: the undo; calling it twice is harmless.

    Raises:
        UnsupportedError: this version of torch iterates its loaders in some other way.
    """
    iterator_class: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
    original = vars(iterator_class).get("__next__") if iterator_class is not None else None
    if original is None:
        raise UnsupportedError(
            "enable_dataloader: this version of PyTorch has no _BaseDataLoaderIter.__next__; "
            "call start(), stop() and step() in the training loop instead"
        )
    ours = _following(original, on_request, on_batch)
    iterator_class.__next__ = ours

    def undo() -> None:
        if vars(iterator_class).get("__next__") is ours:
            iterator_class.__next__ = original

    return undo


def _following(
    original: Callable[[Any], Any], on_request: Callable[[], None], on_batch: Callable[[int], None]
) -> Callable[[Any], Any]:
    home = (os.getpid(), threading.get_ident())
    is_inside = False
    has_warned = False

    @functools.wraps(original)
    def next_batch(iterator: Any) -> Any:
        nonlocal is_inside, has_warned
        here = (os.getpid(), threading.get_ident())
        if here != home:
            if here[0] == home[0] and not has_warned:
                has_warned = True
                logger.warning(
                    "enable_dataloader: a DataLoader is read in another thread; its batches do "
                    "not count as steps"
                )
            return original(iterator)
        if is_inside:
            return original(iterator)
        is_inside = True
        try:
            on_request()
            batch = original(iterator)
            on_batch(iterator._num_yielded - 1)
        finally:
            is_inside = False
        return batch

    return next_batch
