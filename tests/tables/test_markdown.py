"""Layout of Markdown tables."""

from fairseq_sparse.tables.markdown import markdown_table


def test_cells_are_padded_and_left_as_they_are():
    table = markdown_table(["model", "p"], [["α-ReLU", 0.5], ["1e5", "1,000"], ["", None]])
    assert table.splitlines() == [
        "| model  | p     |",
        "| ------ | ----- |",
        "| α-ReLU | 0.5   |",
        "| 1e5    | 1,000 |",
        "|        |       |",
    ]


def test_a_long_header_is_as_wide_as_it_is_and_rows_may_be_missing():
    assert markdown_table(["a header"], []) == "| a header |\n| -------- |"
