# SPDX-License-Identifier: Apache-2.0
"""`Records`: the records of a rank by name, each parsed when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msprobe.dump.journal import JournalContents
from msprobe.dump.record_index import RecordIndex, Span, read_bytes
from msprobe.dump.record_names import RecordName, parse_record_name
from msprobe.dump.record_views import Record
from msprobe.dump.records import JsonTree
from msprobe.dump.value_reader import ValueReader
from msprobe.dump.values import Value
from msprobe.errors import RecordNotFoundError

# Names of other ranks and steps are mostly the same; those of other parts of a model are not.
_MOST_SHARED: Final = 4


class ParsedNames(dict[str, RecordName]):
    """Names taken apart when they are first asked for.

    Args:
        level: helps to read the oldest names.
    """

    def __init__(self, level: str) -> None:
        super().__init__()
        self.level = level

    def __missing__(self, name: str) -> RecordName:
        """Take a name apart."""
        found = self[name] = parse_record_name(name, level=self.level)
        return found


class Records(Mapping[str, Record]):
    """The records of a rank by name, in file order; each is parsed when it is asked for.

    Attributes:
        names: the names taken apart.
    """

    def __init__(self, index: RecordIndex, level: str) -> None:
        """Make a view of `index`; `level` helps to read the oldest names."""
        self._index = index
        self._level = level
        self._reader = ValueReader(index.path, level=level)
        self.names = ParsedNames(level)
        self._kept: dict[str, list[Value]] | None = None

    def __getitem__(self, name: str) -> Record:
        """Return one record.

        Raises:
            RecordNotFoundError: there is none of that name (also a `KeyError`).
            DumpFormatError: its text is damaged.
        """
        return Record(name=self.parsed(name), data=self.data(name), reader=self._reader)

    def data(self, name: str) -> JsonTree:
        """Return one record as it is in the file, its name not parsed.

        Raises:
            RecordNotFoundError: there is none of that name (also a `KeyError`).
            DumpFormatError: its text is damaged.
        """
        try:
            return self._index[name]
        except KeyError:
            raise RecordNotFoundError(self._index.path, f"holds no record {name!r}") from None

    def values_of(self, name: str) -> list[Value]:
        """Return the values of one record; made anew by each call unless they are kept.

        Raises:
            RecordNotFoundError: there is none of that name (also a `KeyError`).
            DumpFormatError: its text is damaged, or a value is of a wrong type.
        """
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        parsed = self.parsed(name)
        text = self._text(name)
        found = None if text is None else self._reader.read_usual(text, parsed)
        if found is None:
            found = self._reader.read(self.data(name), parsed)
        if self._kept is not None:
            self._kept[name] = found
        return found

    def keep_values(self) -> None:
        """Keep the values that are asked for from now on: for who reads all of them twice."""
        self._kept = {} if self._kept is None else self._kept

    def has_same(self, other: Records, name: str) -> bool:
        """Return whether another dump has the same record, to the byte; False if unsure."""
        return self._level == other._level and self._index.has_same(other._index, name)

    def share_names(self, names: ParsedNames | None) -> ParsedNames:
        """Take names apart once for several dumps, which mostly hold the same; return the names."""
        if names is None or names.level != self._level:
            return self.names
        if len(names) <= _MOST_SHARED * len(self):
            self.names = names
        return self.names

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in file order: the order of execution."""
        return iter(self._index)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._index)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a record of that name, without parsing it."""
        return name in self._index

    def parsed(self, name: str) -> RecordName:
        """Return a name taken apart, without reading the record."""
        return self.names[name]

    def _text(self, name: str) -> bytes | None:
        """Return the JSON text of a record; None if there is none, or it is parsed already."""
        return self._index.text(name) if name in self._index else None

    def may_list_parameters(self, name: str) -> bool:
        """Return whether a record may have parameters; cheap, errs on the safe side."""
        return self._index.may_hold(name, b'"parameters"')

    def may_hold_any(self, name: str, words: Iterable[bytes]) -> bool:
        """Return whether a record's JSON has one of these texts in it; errs on the safe side."""
        return any(self._index.may_hold(name, word) for word in words)

    def words_present(self, words: Iterable[bytes]) -> tuple[bytes, ...]:
        """Return those of these texts that the JSON of any record may have in it."""
        return tuple(word for word in words if self._index.any_may_hold(word))

    def may_be_nonfinite(self, name: str) -> bool:
        """Return whether a record may hold a NaN or infinity; cheap, errs on the safe side."""
        return self._index.may_be_nonfinite(name)


def read_journal_records(journal: JournalContents) -> Records:
    """Return the records that a left-over journal holds.

    Raises:
        DumpFormatError: the journal cannot be read.
    """
    return Records(journal_index(journal), journal.index.head.level)


def journal_index(journal: JournalContents) -> RecordIndex:
    """Return where each record lies in a journal, in the order of the calls."""
    in_order = sorted(journal.index.records.items(), key=lambda item: item[1].order)
    entries = {name: Span(span.offset, span.offset + span.length) for name, span in in_order}
    return RecordIndex(journal.path, {}, entries, read_bytes(journal.path))
