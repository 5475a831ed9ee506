"""Pictures of trees of translations."""

from automata import Table
from fairseq_sparse.measure.output.support_tree import grow
from fairseq_sparse.plots.pictures import font_families
from fairseq_sparse.plots.support_tree import draw_tree
from trees import END, next_tokens, walk, word


def tree_of(name=word):
    table = Table(6, branching=3, dead_end=0.0, salt=2)
    return grow(next_tokens(table), name, most_nodes=40, max_len=4)


def test_tokens_are_drawn_as_they_are(tmp_path):
    """Dollars are no mathematics, and characters that Matplotlib's own font lacks have another."""
    tree = tree_of(lambda token: ["$$", "$_$", "犬"][token % 3])
    figure = draw_tree(tree, source="$x$")
    figure.savefig(tmp_path / "tree.svg")
    for text in (*figure.texts, *figure.axes[0].texts):
        if text.get_text()[:1] in ("$", "犬"):
            assert not text.get_parse_math()
            assert text.get_fontfamily() == font_families("$_x犬")


def test_drawing_shows_each_node_once(tmp_path):
    tree = tree_of()
    figure = draw_tree(tree, min_prob=0.02, source="d r a w")
    assert [text.get_text() for text in figure.texts] == ["d r a w"]
    shown = [tokens for node, tokens in walk(tree["root"]) if node["total"] >= 0.02]
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert len(labels) == 2 * len(shown) - 1  # a word and a probability, but for the root
    assert labels.count("</s>") == sum(tokens[-1:] == END for tokens in shown)
    figure.savefig(tmp_path / "tree.svg")
