# SPDX-License-Identifier: Apache-2.0
"""`TextBlock`: millions of texts as one piece of bytes, which is read and searched as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

_END: Final = 0
_LAST_ASCII: Final = 127
_SAMPLE: Final = 1 << 16
_PIECE: Final = 1 << 19


class TextBlock:
    """Texts, each at its place.

    Attributes:
        content: the texts in UTF-8, also of half characters, each with a zero byte behind it.
    """

    def __init__(self, content: bytes) -> None:
        """Take the texts.

        Raises:
            ValueError: they are not of this form.
        """
        if not content.endswith(b"\0"):
            raise ValueError("texts without an end")
        self.content = content
        data = np.frombuffer(content, np.uint8)
        # In small letters, made here so that the first search does not wait for it.
        foreign = _decoded(data[data > _LAST_ASCII].tobytes())
        is_plain = foreign == foreign.lower()
        small = content.lower() if is_plain else _encoded(_decoded(content).lower())
        self._small = np.frombuffer(small, np.uint8)
        self._ends = _places(data, _END)
        self._small_ends = self._ends if is_plain else _places(self._small, _END)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return the block of some texts."""
        joined = "".join([text.replace("\0", "") + "\0" for text in texts])
        return cls(_encoded(joined))

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._ends)

    def __getitem__(self, place: int) -> str:
        """Return one text."""
        start = self._ends[place - 1] + 1 if place else 0
        return _decoded(self.content[start : self._ends[place]])

    @cached_property
    def _counts(self) -> NDArray[np.intp]:
        """How often each byte is among some of the texts'."""
        return np.bincount(self._small[:: len(self._small) // _SAMPLE + 1], minlength=256)

    def having(self, part: str, *, whole: bool = False) -> NDArray[np.bool_]:
        """Return which texts have a part.

        Args:
            part: in small letters; capitals of the texts are taken for small ones.
            whole: whether the part must be between spaces, or at the ends of the text.
        """
        if not part:
            lengths = np.diff(self._small_ends, prepend=-1) - 1
            return (lengths == 0) if whole else np.ones(len(self), bool)
        small, sought = self._small, np.frombuffer(_encoded(part), np.uint8)
        first, *others = np.argsort(self._counts[sought], kind="stable").tolist()
        hits = _places(small[first:], sought[first])  # the rarest of the bytes
        hits = hits[hits <= len(small) - len(sought)]
        for place in others:
            hits = hits[small[hits + place] == sought[place]]
        if whole:
            for edge in (-1, len(sought)):
                hits = hits[np.isin(small[hits + edge], (_END, ord(" ")))]
        if len(hits) > len(self):
            return np.diff(np.searchsorted(hits, self._small_ends), prepend=0) > 0
        found = np.zeros(len(self), bool)
        found[np.searchsorted(self._small_ends, hits)] = True
        return found


def _places(data: NDArray[np.uint8], byte: int) -> NDArray[np.intp]:
    """Return where a byte is; piece by piece, as what each gives fits the processor's cache."""
    starts = range(0, len(data), _PIECE)
    found = [np.flatnonzero(data[start : start + _PIECE] == byte) + start for start in starts]
    return np.concatenate(found) if found else np.zeros(0, np.intp)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")
