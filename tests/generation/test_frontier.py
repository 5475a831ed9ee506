"""The queue of an exact search keeps a bound for whatever it discards."""

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.generation import frontier
from fairseq_sparse.generation.frontier import Frontier, Prefix

prefixes = st.builds(
    Prefix,
    tokens=st.integers(0, 2).map(lambda length: (4,) * length),
    log_probs=st.just(()),
    total=st.integers(-4, 0).map(float),
)
log_probs = st.lists(st.integers(-9, 0), min_size=1, max_size=5).map(np.float64)


@given(st.lists(st.tuples(prefixes, log_probs), max_size=5), st.integers(0, 3), st.integers(1, 9))
def test_what_is_discarded_keeps_its_bound(parts, popped, wanted):
    """The best that is left of each length is the same, in the queue or known as a bound."""
    queues = Frontier(), Frontier()
    for queue in queues:
        for prefix, scores in parts:
            queue.add(prefix, np.arange(len(scores)), scores)
        for _ in range(min(popped, sum(len(scores) for _, scores in parts))):
            queue.pop()
    whole, shrunk = queues
    with mock.patch.object(frontier, "LARGEST", 0):
        shrunk.shrink(wanted)
    assert sorted(shrunk.remaining()) == sorted(whole.remaining())
    for _ in range(wanted):  # the first are still there, in the same order
        if whole:
            assert shrunk.pop().total == whole.pop().total
    assert sorted(shrunk.remaining()) == sorted(whole.remaining())
