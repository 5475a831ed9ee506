"""Parameters and operations against counting on paper, for a small Transformer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bad_input import assert_refused
from paper import sizes

SMALL = (
    "--arch transformer_sparse_tiny --source-vocabulary 30 --target-vocabulary 20 --length 7"
).split()
KINDS = "rela_g,rela_i,relu,entmax15,entmax_learned"
# transformer_sparse_tiny: 2 + 2 layers with six attention modules of two heads.
WIDTH, HEADS, ATTENTIONS, LENGTH = 64, 2, 6, 7
SCORES = HEADS * LENGTH**2


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    found = sizes.results_of(sizes.parse_arguments([*SMALL, "--kinds", KINDS]))
    return {result["attention"]: result for result in found}


def test_parameters_of_the_baseline(results: dict[str, dict]) -> None:
    norm = 2 * WIDTH
    attention = 4 * (WIDTH**2 + WIDTH)
    feed_forward = 2 * WIDTH**2 + 2 * WIDTH
    layers = 2 * (attention + feed_forward + 2 * norm) + 2 * (2 * attention + feed_forward)
    assert list(results) == ["softmax", *KINDS.split(",")]
    assert results["softmax"]["parameters"] == layers + 2 * 3 * norm + (30 + 20) * WIDTH


def test_parameters_that_a_kind_adds(results: dict[str, dict]) -> None:
    added = {name: result["added_parameters"] for name, result in results.items()}
    assert added == {
        "softmax": 0,
        "relu": 0,
        "entmax15": 0,
        "rela_i": ATTENTIONS * WIDTH,
        "rela_g": ATTENTIONS * 2 * WIDTH,
        "entmax_learned": ATTENTIONS * HEADS,
    }


def test_operations_of_a_module(results: dict[str, dict]) -> None:
    products = 2 * 4 * LENGTH * WIDTH**2 + 2 * 2 * LENGTH**2 * WIDTH
    assert {result["module"]["products"] for result in results.values()} == {products}
    others = {name: result["module"]["others"] for name, result in results.items()}
    assert others["softmax"] == 5 * SCORES + LENGTH * WIDTH
    assert others["relu"] == SCORES + LENGTH * WIDTH
    assert others["relu"] < others["rela_i"] < others["rela_g"]
    # A threshold takes several passes over the scores.
    assert others["entmax15"] > 2 * others["softmax"]
    assert others["entmax_learned"] > others["entmax15"]


def test_sentence_is_more_than_its_attention_modules(results: dict[str, dict]) -> None:
    for result in results.values():
        module, sentence = result["module"], result["sentence"]
        assert sentence["total"] == sentence["products"] + sentence["others"]
        output = 2 * LENGTH * WIDTH * 20
        feed_forward = 4 * 2 * 2 * LENGTH * WIDTH**2
        assert sentence["products"] == ATTENTIONS * module["products"] + feed_forward + output
    assert results["softmax"]["sentence"]["ratio"] == 1
    assert results["entmax_learned"]["sentence"]["ratio"] > 1


def test_operations_of_single_functions() -> None:
    x = torch.ones(3, 4)
    for run, expected in [
        (lambda: x.exp(), 12),
        (lambda: x.sum(), 12),
        (lambda: x.clone().masked_fill_(x > 0, 1.0), 12),  # the comparison
        (lambda: x.view(4, 3).t().contiguous(), 0),
        (lambda: torch.softmax(x, -1), 60),
        (lambda: torch.nn.functional.leaky_relu(x), 12),
    ]:
        assert sizes.operations(run) == {"products": 0, "others": expected}
    assert sizes.operations(lambda: x @ x.t()) == {"products": 2 * 3 * 4 * 3, "others": 0}
    query, key = torch.ones(1, 2, 5, 8), torch.ones(1, 2, 7, 8)
    attention = sizes.operations(
        lambda: torch.nn.functional.scaled_dot_product_attention(query, key, key)
    )
    assert attention == {"products": 2 * 2 * 5 * 7 * (8 + 8), "others": 5 * 2 * 5 * 7 + 80}


def test_closed_forms_are_those_of_the_paper() -> None:
    """ReLA, Table 4, and the figures in its text: 239K and 592K, 23.99M and 13.12M."""
    options = sizes.parse_arguments([])
    found = sizes.activations(options, heads=8, width=512)
    short, long = found["operations"]
    assert (short["tokens"], long["tokens"]) == (100, 1000)
    assert [short[kind]["formula"] for kind in ("softmax", "rela_g")] == [239_200, 592_100]
    assert [long[kind]["formula"] for kind in ("softmax", "rela_g")] == [23_992_000, 13_121_000]
    # 3HT² - HT = HT² + 10Td + T at T = (H + 10d + 1) / 2H.
    assert found["softmax_up_to"]["formula"] == (8 + 5120 + 1) // 16 == 320


def test_counts_of_an_activation() -> None:
    heads, width = 4, 32
    options = sizes.parse_arguments(["--activation-lengths", "3", "50"])
    found = sizes.activations(options, heads, width)
    counted = [entry["rela_g"]["counted"] for entry in found["operations"]]
    for tokens, entry in zip((3, 50), found["operations"], strict=True):
        assert entry["softmax"]["counted"] == 5 * heads * tokens**2
    # One operation per score (the rectifier); the rest per token does not depend on the length.
    per_token = {
        (count - heads * tokens**2) / tokens for count, tokens in zip(counted, (3, 50), strict=True)
    }
    assert len(per_token) == 1 and 5 * width < per_token.pop() < 12 * width
    last = found["softmax_up_to"]["counted"]
    for tokens, expected in ((last, True), (last + 1, False)):
        softmax, rela = (
            sizes.activation_operations(kind, heads, tokens, width)
            for kind in ("softmax", "rela_g")
        )
        assert (softmax <= rela) == expected


def test_command_line(tmp_path: Path, capsys) -> None:
    path = tmp_path / "out.json"
    assert sizes.main([*SMALL, "--kinds", "rela_g", "--json", str(path)]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))["results"]
    first = capsys.readouterr().out.partition("closed form")[0]
    lines = [line for line in first.splitlines() if line.startswith("|")][:-1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in cells] == ["softmax", "rela_g"]
    assert [row[1] for row in cells] == [f"{entry['parameters']:,}" for entry in written]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--kinds", "rela_x"], "rela_x"),
        (["--arch", "nothing"], "nothing"),
        (["--arch", "lstm_sparse"], "lstm_sparse"),
        (["--arch", "transformer_lm_sparse"], "transformer_lm_sparse"),
        (["--target-vocabulary", "3"], "3"),
    ],
)
def test_bad_values_are_one_line(flags, named, capsys) -> None:
    assert_refused(capsys, named, sizes.main, [*SMALL, *flags])
