"""Texts of alternatives and of trees."""

from fairseq_sparse.tables.sentences import number_text, tree_text


def node(token, probability, total, *children, expanded=True):
    return dict(
        token=token, probability=probability, total=total, children=children, expanded=expanded
    )


def test_numbers_do_not_pretend():
    assert [number_text(p) for p in (0.0, 1e-9, 0.5, 0.99999, 1.0, 1.0004, 1.5)] == [
        *("0", "1e-09", "0.500", ">.999", "1.000", ">1", "1.500")
    ]


def test_a_tree_has_a_line_for_each_node_and_says_what_it_hides():
    below = [node("</s>", 0.75, 0.375), node("b", 0.25, 0.125, expanded=False)]
    root = node("", 1, 1, node("a", 0.5, 0.5, *below), node("</s>", 0.25, 0.25))
    tree = {"root": root, "eos": "</s>"}
    lines = ["a 0.500", "  </s> 0.750  (in all 0.375)", "  b 0.250 ..."]
    lines += ["</s> 0.250  (in all 0.25)"]
    assert tree_text(tree).splitlines() == lines
    shown = [lines[0], lines[1], "  ... 1 more", "... 1 more"]
    assert tree_text(tree, min_prob=0.3).splitlines() == shown
