"""Statistics of the output against plain loops, and against all strings of small models."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import toy
from automata import EOS, FIRST_WORD, Distributions
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.output.output_statistics import (
    POSITIONS,
    QUANTILES,
    SUM_BINS,
    SUM_WIDTH,
    OutputStatistics,
    count_certified,
    doubling_histogram,
    measure_steps,
    quantile,
)
from fairseq_sparse.measure.translator import (
    ForcedSteps,
    Translator,
    search,
    with_best_translations,
)
from finite_tables import WIDE, WORDS, finite_table, samples, strings_of, translator_of

A, B = FIRST_WORD, FIRST_WORD + 1


def random_steps(rows, vocabulary, seed=0, scale=1.0):
    """Return steps with random supports, from no token to all tokens."""
    generator = torch.Generator().manual_seed(seed)
    log_p = torch.randn(rows, vocabulary, generator=generator).log_softmax(1)
    log_p += scale * torch.rand(rows, 1, generator=generator)
    possible = torch.rand(rows, vocabulary, generator=generator) < torch.rand(
        rows, 1, generator=generator
    )
    possible[0], possible[1] = False, True
    token = torch.randint(vocabulary, (rows,), generator=generator)
    log_p = log_p.masked_fill(~possible, -math.inf)
    position = torch.arange(rows) % (POSITIONS + 9)
    return ForcedSteps(log_p, token, torch.zeros(rows, dtype=torch.long), position)


def statistics_of(vocabulary, *parts):
    statistics = OutputStatistics(vocabulary)
    for part in parts:
        statistics.add(part)
    return statistics.result()


def test_numbers_are_those_that_are_counted_by_hand():
    steps = random_steps(200, 50)
    result = statistics_of(50, steps)
    rows = [[math.exp(x) for x in row] for row in steps.log_p.tolist()]
    nonzeros = [sum(p > 0 for p in row) for row in rows]
    sums = [math.fsum(row) for row in rows]
    assert (result["steps"], result["vocabulary"]) == (200, 50)
    assert result["nonzeros"]["mean"] == pytest.approx(np.mean(nonzeros))
    assert (result["nonzeros"]["min"], result["nonzeros"]["max"]) == (0, 50)
    assert result["nonzeros"]["quantiles"] == {
        str(q): np.quantile(nonzeros, q, method="inverted_cdf") for q in QUANTILES
    }
    assert result["zeros"] == pytest.approx(np.mean([row.count(0.0) / 50 for row in rows]))
    gold = [row[token] for row, token in zip(rows, steps.token.tolist(), strict=True)]
    assert result["gold_zero"] == gold.count(0.0) / 200 > 0
    assert result["prob_sum"]["mean"] == pytest.approx(np.mean(sums))
    assert result["prob_sum"]["sd"] == pytest.approx(np.std(sums))
    assert result["prob_sum"]["max"] == pytest.approx(max(sums))
    for name, values in (("nonzeros", nonzeros), ("prob_sum", sums)):
        histogram = result[name]["histogram"]
        edges = histogram["edges"]
        assert len(edges) == len(histogram["counts"]) + 1
        for low, high, count in zip(edges, edges[1:], histogram["counts"], strict=False):
            assert count == sum(low <= value < high for value in values)
        assert sum(histogram["counts"]) == 200


@pytest.mark.parametrize("vocabulary", [3, 10, 11, 100, 120])
def test_nonzeros_by_position_and_by_rank_are_those_counted_one_by_one(vocabulary):
    steps = random_steps(300, vocabulary)
    result = statistics_of(vocabulary, steps)
    nonzeros: dict = {}
    for row, position in zip(steps.log_p.tolist(), steps.position.tolist(), strict=True):
        nonzeros.setdefault(position, []).append(sum(x > -math.inf for x in row))
    seen = [nonzeros[position] for position in range(POSITIONS)]
    assert result["by_position"]["steps"] == list(map(len, seen))
    assert result["by_position"]["nonzeros"] == pytest.approx(list(map(np.mean, seen)), rel=1e-6)
    edges = result["by_rank"]["edges"]
    assert edges == [0, *(edge for edge in (10, 100) if edge < vocabulary), vocabulary]
    parts = zip(edges, edges[1:], result["by_rank"]["nonzeros"], strict=False)
    for low, high, mean in parts:
        counts = [sum(x > -math.inf for x in row[low:high]) for row in steps.log_p.tolist()]
        assert mean == pytest.approx(np.mean(counts))


def test_parts_add_up_to_the_whole():
    steps = random_steps(90, 20)
    parts = [
        ForcedSteps(
            steps.log_p[part], steps.token[part], steps.sentence[part], steps.position[part]
        )
        for part in (slice(0, 1), slice(1, 40), slice(40, 90))
    ]
    whole, added = statistics_of(20, steps), statistics_of(20, *parts)
    for name in ("mean", "sd"):
        value = added["prob_sum"].pop(name)
        assert value == pytest.approx(whole["prob_sum"].pop(name), rel=1e-12)
    assert added == whole


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.sampled_from(QUANTILES))
def test_quantiles_are_numpy_s(numbers, q):
    counts = torch.bincount(torch.tensor(numbers), minlength=13)
    assert quantile(counts, q) == np.quantile(numbers, q, method="inverted_cdf")


@pytest.mark.parametrize("vocabulary", [1, 7, 8, 9, 1000])
def test_doubling_bins_hold_every_possible_number(vocabulary):
    counts = torch.arange(1, vocabulary + 2)
    histogram = doubling_histogram(counts)
    edges = histogram["edges"]
    assert edges[:2] == [0, 1] and edges[-2] <= vocabulary < edges[-1]
    assert all(high == 2 * low for low, high in zip(edges[1:], edges[2:], strict=False))
    assert sum(histogram["counts"]) == counts.sum()


def test_a_sum_that_is_rounded_to_either_side_of_1_stays_in_one_bin():
    p = torch.tensor([[1 + 1e-6], [1 - 1e-6], [1.0]])
    steps = ForcedSteps(p.log(), *torch.zeros(3, 3, dtype=torch.long))
    sums = statistics_of(1, steps)["prob_sum"]
    edges = [1 - SUM_WIDTH / 2, 1 + SUM_WIDTH / 2]
    assert sums["histogram"] == {"edges": pytest.approx(edges), "counts": [3]}
    assert 0 < sums["sd"] < 2e-6


def test_sums_beyond_the_last_bin_are_counted_in_it():
    p = torch.tensor([[2.0 * SUM_BINS * SUM_WIDTH], [SUM_WIDTH]])
    steps = ForcedSteps(p.log(), *torch.zeros(3, 2, dtype=torch.long))
    histogram = statistics_of(1, steps)["prob_sum"]["histogram"]
    assert histogram["counts"][0] == histogram["counts"][-1] == 1
    assert histogram["edges"][-1] == pytest.approx(p.max().item())


def test_nan_and_nothing_are_refused():
    steps = random_steps(4, 5)
    steps.log_p[2, 3] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        statistics_of(5, steps)
    with pytest.raises(AnalysisError, match="no sentence"):
        statistics_of(5)


def test_references_are_forced_whatever_the_batches():
    words = toy.dictionary()
    model = toy.model("--output-transform", "entmax15").eval()
    translator = Translator("toy", [], [model], toy.task())
    whole = toy.batch(words)
    result = measure_steps(translator, [whole], "test")
    assert (result["sentences"], result["steps"]) == (3, whole["ntokens"])
    lengths = (whole["target"] != words.pad()).sum(1)
    steps = [int((lengths > position).sum()) for position in range(int(lengths.max()))]
    assert result["by_position"]["steps"] == steps
    parts = []
    for row in range(3):
        part = {**whole, "target": whole["target"][row : row + 1]}
        part["net_input"] = {
            name: value[row : row + 1] for name, value in whole["net_input"].items()
        }
        parts.append(part)
    split = measure_steps(translator, parts, "test")
    for name in ("sentences", "nonzeros", "gold_zero", "by_position", "by_rank"):
        assert split[name] == result[name]
    with pytest.raises(AnalysisError, match="--subset test: there are no references"):
        measure_steps(translator, [{**whole, "target": None}], "test")


@pytest.mark.parametrize("ensemble", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_certified_shares_are_those_of_all_strings(normalized, ensemble):
    found_single = False
    for salt in range(20):
        # Some ensembles have two equal models, so that they too can have a single string.
        salts = [salt, salt + salt % 2][:ensemble]
        tables = [finite_table(n, 3 - ensemble, normalized=normalized) for n in salts]
        strings = strings_of(tables)
        translator = translator_of(*tables)
        single = sum(len(found) == 1 for found in strings) / len(strings)
        # Without dead ends, a beam of 1 finds out whether there is a single string.
        one = count_certified(translator, samples(), beam=1)
        assert one == {"exact": single, "single": single}
        all_of_them = count_certified(translator, samples(), beam=WIDE)
        assert all_of_them == {"exact": 1.0, "single": single}
        two = count_certified(translator, samples(), beam=2)
        assert single <= two["exact"] <= sum(len(found) <= 2 for found in strings) / len(strings)
        found_single |= 0 < single < 1
    assert found_single


def test_a_search_that_is_sure_of_its_best_goes_on_until_it_has_all():
    """A search for the best one alone could stop at the first translation."""
    follow = {(): {A: 1.0, B: 1e-9}, (A,): {EOS: 1.0}, (B,): {A: 1.0}, (B, A): {EOS: 1.0}}
    table = Distributions(follow, WORDS)
    (best,) = [hypos for _, (hypos,) in search(translator_of(table), samples([A]), beam=2)]
    assert best[0]["optimal"] and not best[0]["exact"]
    shares = count_certified(translator_of(table), samples([A]), beam=2)
    assert shares == {"exact": 1.0, "single": 0.0}


def test_a_wide_beam_sees_one_string_where_other_prefixes_come_to_nothing():
    wider = 0
    for salt in range(30):
        table = finite_table(salt, dead_end=0.3)
        strings = strings_of([table])
        result = count_certified(translator_of(table), samples(), beam=WIDE)
        assert result["single"] == sum(len(found) == 1 for found in strings) / len(strings)
        assert result["exact"] == sum(len(found) > 0 for found in strings) / len(strings)
        narrow = count_certified(translator_of(table), samples(), beam=1)
        assert narrow["single"] == narrow["exact"] <= result["single"]
        wider += narrow["single"] < result["single"]
    assert wider > 0


def test_a_dense_model_certifies_nothing_and_is_not_searched():
    translator = translator_of(finite_table(1), is_sparse=False)
    assert count_certified(translator, None, beam=1) == {"exact": None, "single": None}
    with pytest.raises(AnalysisError, match="no sentence"):
        count_certified(translator_of(finite_table(1)), [], beam=1)


@pytest.mark.parametrize("arch", ["transformer_tiny", "transformer_sparse_tiny", "lstm_sparse"])
def test_attended_positions_are_those_of_cross_attention(arch):
    flags = [] if arch == "transformer_tiny" else ["--attention", "entmax15"]
    words = toy.dictionary()
    model = toy.model(*flags, arch=arch, criterion="").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    batch = toy.batch(words, ((6, 5), (4, 3), (2, 7)))
    found = measure_steps(Translator("toy", [], [model], toy.task()), [batch], "test")
    nonzeros = []
    for pair in forced_attention(model, batch, words.pad()):
        weights = pair.weights["cross"]  # [layers, heads, queries, keys]
        nonzeros += (weights != 0).double().sum(-1).mean((0, 1)).tolist()
    assert found["attended"] == pytest.approx(np.mean(nonzeros))
    assert found["steps"] == len(nonzeros)
    if flags:
        assert 1 <= found["attended"] < np.mean([7, 5, 3])
    ensemble = Translator("toy", [], [model, model], toy.task())
    assert measure_steps(ensemble, [batch], "test")["attended"] is None


@pytest.mark.parametrize("flags", [["--decoder-attention", "0"], ["--no-cross-attention"]])
def test_what_does_not_attend_to_the_source_has_no_such_number(flags):
    arch = "lstm_sparse" if "--decoder-attention" in flags else "transformer_sparse_tiny"
    words, model = toy.dictionary(), toy.model(*flags, arch=arch, criterion="").eval()
    batch = toy.batch(words, ((6, 5), (4, 3), (2, 7)))
    found = measure_steps(Translator("toy", [], [model], toy.task()), [batch], "test")
    assert found["attended"] is None and found["steps"] == 18


def test_steps_of_decoding_are_those_of_the_translations_that_search_finds():
    words = toy.dictionary()
    model = toy.model(
        "--output-transform", "alpha_relu", "--output-tau", "0.2", criterion=""
    ).eval()
    translator = Translator("toy", [], [model], toy.task())
    batch = toy.batch(words, ((6, 5), (4, 3), (2, 7)))
    found = measure_steps(translator, with_best_translations(translator, [batch], 3), "test")
    ((_, hypotheses),) = search(translator, [batch], 3)
    best = [hypos[0]["tokens"] for hypos in hypotheses]
    assert found["sentences"] == len(best) == 3
    assert found["steps"] == sum(map(len, best)) != int(batch["ntokens"])
    # The same sums without forced_steps, from one call of the model per translation.
    sums = []
    for number, tokens in enumerate(best):
        source = batch["net_input"]["src_tokens"][number : number + 1]
        lengths = batch["net_input"]["src_lengths"][number : number + 1]
        output = model(source, lengths, torch.cat([tokens[-1:], tokens[:-1]]).unsqueeze(0))
        sums += model.get_normalized_probs(output, log_probs=False)[0].sum(-1).tolist()
    assert found["prob_sum"]["mean"] == pytest.approx(np.mean(sums), rel=1e-4)
    assert found["prob_sum"]["max"] == pytest.approx(max(sums), rel=1e-4)
    references = measure_steps(translator, [batch], "test")
    assert references["prob_sum"]["mean"] != pytest.approx(np.mean(sums), rel=1e-3)
