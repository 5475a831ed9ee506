"""The support tree against all strings of small models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toy
from automata import (
    EOS,
    FIRST_WORD,
    LoudTable,
    Script,
    Table,
    dense_table,
    every_string,
)
from fairseq_sparse.measure.output import support_tree
from fairseq_sparse.measure.output.support_tree import grow, trees_of
from fairseq_sparse.measure.translator import Translator
from trees import END, SEED, next_tokens, walk, word

MAX_LEN = 4

tables = st.builds(
    Table,
    words=st.just(6),
    branching=st.integers(1, 3),
    eos=st.sampled_from([0.2, 0.5, 0.9]),
    dead_end=st.sampled_from([0.0, 0.1, 0.5]),
    normalized=st.booleans(),
    salt=st.integers(0, 10**6),
) | st.builds(LoudTable, words=st.just(6), normalized=st.just(False), salt=st.integers(0, 99))


@given(st.lists(tables, min_size=1, max_size=2))
def test_complete_tree_has_all_strings(chosen):
    tree = grow(next_tokens(*chosen), word, most_nodes=10_000, max_len=MAX_LEN)
    found = {tokens: node["total"] for node, tokens in walk(tree["root"]) if tokens[-1:] == END}
    expected = {
        tuple(map(word, tokens)): score
        for tokens, score in every_string(chosen, SEED, MAX_LEN, min_len=0).items()
    }
    assert set(found) == set(expected)
    for tokens, score in expected.items():
        assert found[tokens] == pytest.approx(2.718281828459045**score, rel=1e-4)
    assert (tree["translations"], tree["eos"]) == (len(expected), *END)
    assert tree["mass"] == pytest.approx(sum(found.values()))
    assert tree["complete"] == all(node["expanded"] for node, _ in walk(tree["root"]))
    if tree["complete"]:
        assert len(every_string(chosen, SEED, MAX_LEN + 3, min_len=0)) == len(expected)


def test_improbable_translations_are_in_the_tree_too():
    follow = {(): {FIRST_WORD: 1.0, EOS: 1e-6}, (FIRST_WORD,): {EOS: 1.0}}
    assert grow(next_tokens(Script(follow, words=6)), word)["translations"] == 2


def test_limits_leave_the_tree_open(monkeypatch):
    monkeypatch.setattr(support_tree, "_AT_ONCE", 1)
    small = grow(next_tokens(dense_table(6)), word, most_nodes=20, max_len=MAX_LEN)
    nodes = [node for node, tokens in walk(small["root"]) if tokens[-1:] != END]
    assert sum(node["expanded"] for node in nodes) == 20
    assert not small["complete"] and small["mass"] < 1
    # The most probable prefixes are expanded first.
    best_open = max(node["total"] for node in nodes if not node["expanded"])
    assert min(node["total"] for node in nodes if node["expanded"]) >= best_open


def test_a_wide_tree_ends_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(support_tree, "_MOST_CREATED", 30)
    tree = grow(next_tokens(dense_table(6)), word, most_nodes=1000, max_len=MAX_LEN)
    assert not tree["complete"] and len(list(walk(tree["root"]))) < 200


def test_no_prefix_is_longer_than_the_positions_that_a_model_has():
    flags = ("--decoder-learned-pos", "--max-target-positions", 4)
    model = toy.model(*flags, "--output-transform", "softmax").eval()
    task, sample = toy.task(), toy.batch(toy.dictionary(), [(3, 2)])
    translator = Translator("a model", [], [model], task)
    (found,) = dict(trees_of(translator, sample, most_nodes=5000)).values()
    assert max(len(tokens) for _, tokens in walk(found["root"])) == 4
