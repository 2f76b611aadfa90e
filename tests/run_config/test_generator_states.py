# SPDX-License-Identifier: Apache-2.0
"""The checksums of Python's and NumPy's random generators tell what was drawn, and draw nothing."""

from __future__ import annotations

import random
import struct
import zlib

import numpy as np
import pytest

from msprobe.run_config import random_recording
from msprobe.run_config.random_recording import python_and_numpy_states

# ruff: noqa: NPY002 - what users' scripts share


@pytest.fixture
def shared_generators():
    kept, generator, state = random.getstate(), np.random.get_bit_generator(), np.random.get_state()
    yield
    np.random.set_bit_generator(generator)
    np.random.set_state(state)
    random.setstate(kept)


@pytest.mark.usefixtures("shared_generators")
@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 625, 5000])
def test_numpys_checksum_is_that_of_its_words_and_stand(drawn, is_readable, monkeypatch):
    monkeypatch.setattr(random_recording, "_is_readable", lambda: is_readable)
    np.random.seed(7)
    np.random.bytes(4 * drawn)
    state = np.random.get_state(legacy=False)["state"]
    content = state["key"].tobytes() + str(state["pos"]).encode()
    assert dict(python_and_numpy_states())["numpy"] == f"{zlib.crc32(content):08x}"


@pytest.mark.usefixtures("shared_generators")
def test_another_generator_that_numpy_was_given_is_told_by_its_state():
    np.random.set_bit_generator(np.random.PCG64(3))
    first = dict(python_and_numpy_states())
    assert dict(python_and_numpy_states()) == first
    np.random.rand()
    assert dict(python_and_numpy_states())["numpy"] != first["numpy"]


@pytest.mark.usefixtures("shared_generators")
@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("drawn", [0, 1, 624, 2000])
def test_pythons_checksum_is_that_of_its_words_and_what_it_keeps(drawn, is_readable, monkeypatch):
    monkeypatch.setattr(random_recording, "_is_python_readable", lambda: is_readable)
    random.seed(7)
    for _ in range(drawn):
        random.getrandbits(32)
    if drawn == 1:
        random.gauss(0, 1)
    version, words, gauss = random.getstate()
    content = struct.pack("625I", *words) + repr((version, gauss)).encode()
    assert dict(python_and_numpy_states())["python"] == f"{zlib.crc32(content):08x}"


def test_python_keeps_its_generator_as_its_memory_is_read():
    assert random_recording._is_python_readable()


@pytest.mark.usefixtures("shared_generators")
def test_pythons_checksum_follows_its_draws():
    random.seed(1)
    first = dict(python_and_numpy_states())["python"]
    random.random()
    assert dict(python_and_numpy_states())["python"] != first
    random.seed(1)
    assert dict(python_and_numpy_states())["python"] == first
