# SPDX-License-Identifier: Apache-2.0
"""File formats, read as data and without trusting them: zip, pickle, npy, protobuf, element types.

Nothing here knows of dumps or checkpoints. A damaged file is a `DumpFormatError` or a `ValueError`;
what a reader allows beyond the plain form is an argument of its own.
"""
