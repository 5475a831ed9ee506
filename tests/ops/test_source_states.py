"""Products with states whose gradient is computed at the end, against automatic differentiation."""

import pytest
import torch

from fairseq_sparse.ops.source_states import SourceStates

LENGTH, BATCH, SIZE, STEPS = 5, 3, 4, 6


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(LENGTH, BATCH, SIZE, generator=generator, dtype=dtype)
    queries = torch.randn(STEPS, BATCH, SIZE, generator=generator, dtype=dtype)
    return states.requires_grad_(), queries.requires_grad_()


def plain(states, query):
    weights = torch.einsum("sbd,bd->bs", states, query).softmax(1)
    return torch.einsum("bs,sbd->bd", weights, states)


def attend(source, query):
    return source.context(source.scores(query).softmax(1))


def chain(states, queries, step):
    """Apply ``step`` to each query plus the result of the previous one, as in input feeding."""
    found = torch.zeros_like(queries[0])
    total = []
    for query in queries:
        found = step(query + found)
        total.append(found)
    return torch.stack(total)


def ours(states, queries):
    source = SourceStates(states, len(queries))
    return chain(states, queries, lambda query: attend(source, query))


def test_values_and_gradients_are_those_of_the_products():
    states, queries = inputs()
    torch.testing.assert_close(
        ours(states, queries), chain(states, queries, lambda query: plain(states, query))
    )
    torch.autograd.gradcheck(ours, (states, queries))


@pytest.mark.parametrize("used", [[0], [1, 3], [5], []])
def test_steps_that_the_loss_does_not_see_give_no_gradient(used):
    """Scores from which no context was computed have the right gradient too."""
    states, queries = inputs()
    source = SourceStates(states, STEPS)
    found = [attend(source, query) for query in queries]
    loss = sum((found[step].square().sum() for step in used), states.sum() * 0)
    expected = sum((plain(states, queries[step]).square().sum() for step in used), states.sum() * 0)
    for one, other in zip(
        torch.autograd.grad(loss, (states, queries), allow_unused=True),
        torch.autograd.grad(expected, (states, queries), allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    scores = SourceStates(states, 1).scores(queries[0])
    (gradient,) = torch.autograd.grad(scores.sum(), states)
    torch.testing.assert_close(gradient, queries[0].expand_as(states))


def test_the_gradient_of_a_part_leaves_that_of_the_whole_alone():
    states, queries = inputs()
    found = ours(states, queries)
    torch.autograd.grad(found[2].sum(), queries, retain_graph=True)
    torch.autograd.grad(found[2].sum(), states, retain_graph=True)
    (gradient,) = torch.autograd.grad(found.sum(), states, retain_graph=True)
    (again,) = torch.autograd.grad(found.sum(), states)
    total = chain(states, queries, lambda query: plain(states, query)).sum()
    (expected,) = torch.autograd.grad(total, states)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(again, expected)


def test_states_without_a_gradient_pass_on_that_of_the_queries():
    states, queries = inputs()
    found = ours(states.detach(), queries)
    (gradient,) = torch.autograd.grad(found.sum(), queries)
    total = chain(states, queries, lambda query: plain(states, query)).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(total, queries)[0])
    with torch.no_grad():
        source = SourceStates(states, 1)
        for query in queries:  # without a gradient, any number of queries
            torch.testing.assert_close(attend(source, query), plain(states, query))


def test_more_steps_than_there_is_room_for_are_refused():
    states, queries = inputs()
    source = SourceStates(states, 1)
    attend(source, queries[0])
    with pytest.raises(IndexError):
        attend(source, queries[1])


def test_no_second_derivative_is_made_up():
    states, queries = inputs()
    loss = ours(states, queries).square().sum()
    with pytest.raises(RuntimeError, match="has no second derivative"):
        torch.autograd.grad(loss, states, create_graph=True)
