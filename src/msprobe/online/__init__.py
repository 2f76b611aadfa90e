# SPDX-License-Identifier: Apache-2.0
"""A recording sent to another process while it is made: over the network, or a shared folder.

What is sent are the files of the dump (``spool.py``), in pieces (``links.py``, ``messages.py``):
never code, never pickled objects. ``sender.py`` runs in a process beside the training, so that
nothing that goes wrong with the other side reaches the training; ``receiver.py`` writes the same
files on the other machine, where they are checked as any recording is. Enter at these two.
"""
