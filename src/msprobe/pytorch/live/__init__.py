# SPDX-License-Identifier: Apache-2.0
"""Operators judged while the training runs, each against a reference in higher precision.

Enter at ``live_compare.py``. ``dispatch.py`` sees the operators, ``operator_facts.py`` says from
their schemas which can be judged, ``live_call.py`` runs one again, ``screening.py`` passes those
that are plainly right, ``places.py`` finds module and line.
"""
