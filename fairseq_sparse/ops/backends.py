"""The user's choice of what computes the operators, and what did.

    with backends.use("reference"):  # or FAIRSEQ_SPARSE_BACKEND=reference
        entmax15(z)
    backends.last_used()  # {"entmax": "reference"}

``FAIRSEQ_SPARSE_NATIVE=0`` and ``FAIRSEQ_SPARSE_TRITON=0`` turn off the kernels for CPUs and for
GPUs. The first use of a backend for an operator is logged at level DEBUG.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

VARIABLE = "FAIRSEQ_SPARSE_BACKEND"
# The backends that each choice of the user allows besides the reference.
_CHOICES = {"auto": ("cpu", "gpu"), "reference": (), "cpu": ("cpu",), "gpu": ("gpu",)}


@contextmanager
def use(choice: str) -> Iterator[None]:
    """Return a context in which the user chooses the backend.

    The choice applies to all threads, because gradients are computed in other threads. If contexts
    overlap, the one entered last counts.

    Args:
        choice: ``reference`` for PyTorch alone; ``cpu`` or ``gpu`` for these kernels where they
            apply, else the reference; ``auto`` for both.

    Raises:
        ValueError: the choice is none of these.
    """
    entered = _enter(choice)
    try:
        yield
    finally:
        with _lock:
            _choices[:] = [other for other in _choices if other is not entered]
            _apply_last_choice()


def last_used() -> dict[str, str]:
    """Return the name of the backend that each operator was last computed by in this process."""
    return dict(_last)


def allows(backend: str) -> bool:
    """Return whether the user's choice allows a backend."""
    return backend in _allowed


def record(operator: str, backend: str) -> None:
    """Record the backend that an operator is computed by, and log its first use."""
    if _last.get(operator) == backend:
        return
    _last[operator] = backend
    if (operator, backend) not in _logged:
        _logged.add((operator, backend))
        logger.debug("%s: computed by %s", operator, backend)


def _enter(choice: str) -> list[str]:
    """Activate a choice; return the backends that it allows, as a list of this entry's own."""
    if choice not in _CHOICES:
        raise ValueError(f"the backend must be one of {', '.join(_CHOICES)}, got {choice!r}")
    entered = list(_CHOICES[choice])
    with _lock:
        _choices.append(entered)
        _apply_last_choice()
    return entered


def _apply_last_choice() -> None:
    global _allowed
    _allowed = _choices[-1]


_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # or a child may wait for a thread that it does not have
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
# The choice of the environment variable, then those of the contexts that are active.
_choices: list[list[str]] = []
_allowed: list[str] = []
_last: dict[str, str] = {}
_logged: set[tuple[str, str]] = set()

try:
    _enter(os.environ.get(VARIABLE) or "auto")
except ValueError as error:
    raise ValueError(f"{VARIABLE}: {error}") from None
