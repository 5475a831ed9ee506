"""The support tree against all strings of small models."""

import json

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
    TableModel,
    dense_table,
    every_string,
    make_dictionary,
    make_sample,
)
from fairseq_sparse.generation.exact_search import NextTokens
from fairseq_sparse.measure.output import support_tree
from fairseq_sparse.measure.output.support_tree import as_json, as_text, draw, grow, trees_of
from fairseq_sparse.measure.translator import Translator
from fairseq_sparse.plots.pictures import font_families

SEED = FIRST_WORD + 3
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


def next_tokens(*models: Table) -> NextTokens:
    dictionary = make_dictionary(models[0].words)
    built = [TableModel(dictionary, table) for table in models]
    net_input = make_sample([SEED])["net_input"]
    encoder_outs = [model.encoder(**net_input) for model in built]
    return NextTokens(built, encoder_outs, dictionary.pad(), *[dictionary.eos()] * 2)


def strings_of(node, prefix=()):
    found = {}
    for child in node.children:
        tokens = (*prefix, child.token)
        found.update({tokens: child.total} if child.token == EOS else strings_of(child, tokens))
    return found


def word(token: int) -> str:
    return "</s>" if token == EOS else f"w{token}"


@given(st.lists(tables, min_size=1, max_size=2))
def test_complete_tree_has_all_strings(chosen):
    tree = grow(next_tokens(*chosen), most_nodes=10_000, max_len=MAX_LEN)
    found = strings_of(tree.root)
    expected = every_string(chosen, SEED, MAX_LEN, min_len=0)
    assert set(found) == set(expected)
    for tokens, score in expected.items():
        assert found[tokens] == pytest.approx(2.718281828459045**score, rel=1e-4)
    assert tree.translations == len(expected)
    assert tree.mass == pytest.approx(sum(found.values()))
    longer = every_string(chosen, SEED, MAX_LEN + 3, min_len=0)
    if tree.complete:
        assert set(longer) == set(expected)


def test_improbable_translations_are_in_the_tree_too():
    follow = {(): {FIRST_WORD: 1.0, EOS: 1e-6}, (FIRST_WORD,): {EOS: 1.0}}
    assert grow(next_tokens(Script(follow, words=6))).translations == 2


def test_limits_leave_the_tree_open(monkeypatch):
    monkeypatch.setattr(support_tree, "_AT_ONCE", 1)
    small = grow(next_tokens(dense_table(6)), most_nodes=20, max_len=MAX_LEN)
    assert sum(node.expanded and node.token != EOS for node in small.root.walk()) == 20
    assert not small.complete and small.mass < 1
    # The most probable prefixes are expanded first.
    nodes = [node for node in small.root.walk() if node.token != EOS]
    best_open = max(node.total for node in nodes if not node.expanded)
    assert min(node.total for node in nodes if node.expanded) >= best_open


def test_no_prefix_is_longer_than_the_positions_that_a_model_has():
    flags = ("--decoder-learned-pos", "--max-target-positions", 4)
    model = toy.model(*flags, "--output-transform", "softmax").eval()
    task, sample = toy.task(), toy.batch(toy.dictionary(), [(3, 2)])
    translator = Translator("a model", [], [model], task)
    (found,) = dict(trees_of(translator, sample, most_nodes=5000)).values()
    deepest = max(len(line) - len(line.lstrip()) for line in as_text(found, word).splitlines())
    assert deepest == 2 * 4 - 2


def test_text_has_a_line_for_each_node_and_says_what_it_hides():
    tree = grow(next_tokens(Table(6, branching=3, dead_end=0.0, salt=2)), most_nodes=60, max_len=4)
    lines = as_text(tree, word).splitlines()
    nodes = list(tree.root.walk())[1:]
    assert len(lines) == len(nodes)
    assert [line.split()[0] for line in lines] == [word(node.token) for node in nodes]
    assert sum(line.endswith(" ...") for line in lines) == sum(not n.expanded for n in nodes)
    shown = as_text(tree, word, least=0.05).splitlines()
    large = [node for node in nodes if node.total >= 0.05]
    assert [line for line in shown if "more" not in line] == [
        line for line, node in zip(lines, nodes, strict=True) if node in large
    ]
    hidden = sum(int(line.split()[1]) for line in shown if line.endswith(" more"))
    assert 0 < hidden <= len(nodes) - len(large)


def test_json_is_the_tree():
    tree = grow(next_tokens(Table(6, branching=2, dead_end=0.0, salt=2)), max_len=3)
    content = json.loads(json.dumps(as_json(tree, word)))

    def count(node):
        return 1 + sum(map(count, node["children"]))

    assert count(content["root"]) == sum(1 for _ in tree.root.walk())
    assert content["translations"] == tree.translations and content["complete"] == tree.complete
    (first, *_) = content["root"]["children"]
    assert first["probability"] == first["total"] == tree.root.children[0].probability


def test_tokens_are_drawn_as_they_are(tmp_path):
    """Dollars are no mathematics, and characters that Matplotlib's own font lacks have another."""
    pytest.importorskip("matplotlib")
    tree = grow(next_tokens(Table(6, branching=3, dead_end=0.0, salt=2)), most_nodes=40, max_len=4)
    figure = draw(tree, lambda token: ["$$", "$_$", "犬"][token % 3], source="$x$")
    figure.savefig(tmp_path / "tree.svg")
    for text in (*figure.texts, *figure.axes[0].texts):
        if text.get_text()[:1] in ("$", "犬"):
            assert not text.get_parse_math()
            assert text.get_fontfamily() == font_families("$_x犬")


def test_drawing_shows_each_node_once(tmp_path):
    pytest.importorskip("matplotlib")
    tree = grow(next_tokens(Table(6, branching=3, dead_end=0.0, salt=2)), most_nodes=40, max_len=4)
    figure = draw(tree, word, least=0.02, source="d r a w")
    assert [text.get_text() for text in figure.texts] == ["d r a w"]
    shown = [node for node in tree.root.walk() if node.total >= 0.02]
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert len(labels) == 2 * len(shown) - 1  # a word and a probability, but for the root
    assert sum(label == "</s>" for label in labels) == sum(node.token == EOS for node in shown)
    figure.savefig(tmp_path / "tree.svg")
