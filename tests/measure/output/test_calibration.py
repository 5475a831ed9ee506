"""Sets of tokens that cover gold: what they promise, and that they are what decoding has."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import toy
from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.generation.truncated_sampling import TruncatedSampling
from fairseq_sparse.measure.output.calibration import (
    DIGITS,
    TRUNCATIONS,
    calibrate,
    conformal_limit,
    round_up,
)
from fairseq_sparse.measure.output.gold_by_frequency import WordClasses
from fairseq_sparse.measure.translator import Translator, forced_steps
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

# Few values, so that there are ties, and sentences of tokens that are alike.
SENTENCES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=2, max_size=9)


@given(SENTENCES, st.integers(1, 19).map(lambda n: Fraction(n, 20)))
def test_the_promise_holds_for_any_sentences_that_are_exchangeable(sentences, coverage):
    """Each sentence but the longest is the new one in turn, as exchangeability makes them equally
    likely: the sum of missed tokens is at most the wanted share of theirs."""
    longest = max(sentences, key=lambda part: (len(part), sorted(part)))
    others = [part for number, part in enumerate(sentences) if part is not longest]
    missed = 0
    for new in others:
        rest = [torch.tensor(part, dtype=torch.double) for part in sentences if part is not new]
        limit = conformal_limit(rest, coverage)
        missed += sum(value > limit for value in new)
    assert missed <= (1 - coverage) * sum(map(len, others))


@pytest.mark.parametrize("n", [10, 19, 20, 50])
def test_tokens_that_are_exchangeable_have_the_conformal_quantile(n):
    values = torch.rand(n, generator=torch.Generator().manual_seed(n)).double()
    # One of the n is left out as the longest sentence: split conformal prediction on n - 1.
    kept = sorted(values.tolist())[:-1]
    assert conformal_limit(values.split(1), 0.9) == kept[math.ceil(0.9 * n) - 1]
    assert conformal_limit(values[:9].split(1), 0.95) == math.inf


TRANSFORMS = [("entmax15", 1.5), ("sparsemax", 1.5), ("entmax", 1.1), ("entmax", 2.5)]
TRANSFORMS += [("alpha_relu", 1.5), ("alpha_relu", 1.2)]


@pytest.mark.parametrize(("name", "alpha"), TRANSFORMS)
def test_a_token_enters_at_its_temperature_and_stays(name, alpha):
    torch.manual_seed(0)
    options = {"tau": 0.3} if name == "alpha_relu" else {}
    transform = OUTPUT_TRANSFORMS[name](name, alpha=alpha, **options)
    logits = 4 * torch.randn(60, 30, dtype=torch.double)
    token = torch.randint(30, (60,))
    entry = transform.entry_temperature(logits, token)
    possible = torch.stack(
        [
            transform.probs(transform.at_temperature(logits[[row]], entry[row] * factor))[
                0, token[row]
            ]
            for row in range(60)
            for factor in (0.5, 1 - 1e-6, 1 + 1e-6, 3.0)
            if entry[row] > 0
        ]
    ).view(-1, 4)
    assert len(possible) > 40
    # Above alpha = 1.5, p grows from 0 by a power below 2; a power of 10 would underflow.
    assert (possible[:, :2] == 0).all() and (possible[:, 2:] > 0).all()
    assert (transform.entry_temperature(logits, logits.argmax(1)) == 0).all()


@pytest.mark.parametrize(("name", "alpha"), TRANSFORMS)
def test_a_masked_token_is_possible_at_no_temperature(name, alpha):
    options = {"tau": 0.3} if name == "alpha_relu" else {}
    transform = OUTPUT_TRANSFORMS[name](name, alpha=alpha, **options)
    logits = torch.tensor([[3.0, 2.0, -math.inf]])
    assert transform.entry_temperature(logits, torch.tensor([2])).tolist() == [math.inf]


def test_a_row_of_alpha_relu_without_weights_never_has_any():
    transform = OUTPUT_TRANSFORMS["alpha_relu"]("alpha_relu", tau=0.5)
    logits = torch.tensor([[-1.0, 0.5, 0.0], [3.0, -3.0, 0.0]])
    entry = transform.entry_temperature(logits, torch.tensor([1, 0]))
    assert entry.tolist() == [math.inf, 0]


@given(st.floats(0, 1e4))
def test_rounded_temperatures_are_larger_and_not_by_much(temperature):
    rounded = round_up(temperature)
    assert rounded >= 1 and rounded > temperature
    assert rounded == 1 or rounded - temperature <= 1.001 * 10**-DIGITS
    assert round_up(math.inf) == math.inf


def test_truncations_are_those_of_their_definitions():
    logits = 3 * torch.randn(20, 40, generator=torch.Generator().manual_seed(1))
    p = logits.softmax(1)
    for row in range(20):
        order = p[row].argsort(descending=True).tolist()
        nucleus, mass = [], 0.0
        while mass <= 0.8:
            nucleus.append(order[len(nucleus)])
            mass += p[row, nucleus[-1]].item()
        inside = {
            name: kind.inside(logits)(limit)[row]
            for (name, kind), limit in zip(
                TRUNCATIONS.items(), (0.8, -math.log(0.1), -math.log(0.02)), strict=True
            )
        }
        assert inside["top-p"].nonzero().flatten().tolist() == sorted(nucleus)
        assert torch.equal(inside["min-p"], p[row] >= 0.1 * p[row].max())
        assert torch.equal(inside["epsilon"], p[row] >= 0.02)


# From the only token that is inside on to all of them.
@pytest.mark.parametrize("coverage", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("name", TRUNCATIONS)
def test_sampling_draws_from_the_sets_that_are_measured(name, coverage):
    words, kind = toy.dictionary(), TRUNCATIONS[name]
    torch.manual_seed(2)
    logits = torch.randn(30, len(words))  # flat: the largest p is often below epsilon
    limits = kind.gold(logits, torch.arange(30) % len(words))
    limit = kind.usable(limits.quantile(coverage).item())
    mask = kind.inside(logits)(limit)
    parameter = kind.parameter(limit) * (1 - 1e-6)  # not cut off by rounding
    options = {"top-p": "sampling_topp", "min-p": "min_p", "epsilon": "epsilon"}
    given = {"sampling_topk": -1, "sampling_topp": -1.0, options[name]: parameter}
    sampling = TruncatedSampling(words, **given)
    log_p = logits.log_softmax(1).expand(400, -1, -1)
    drawn = sampling.step(0, log_p.reshape(-1, 1, len(words)), None)[1].view(400, 30)
    counts = torch.zeros_like(mask, dtype=torch.long)
    for row in range(30):
        counts[row] = drawn[:, row].bincount(minlength=len(words))
    assert mask.any(1).all() and not counts[~mask].any()
    likely = mask & (logits.softmax(1) > 0.05)
    assert counts[likely].all()


@pytest.mark.parametrize("output", ["entmax15", "alpha_relu", "softmax"])
@pytest.mark.parametrize("arch", ["transformer_sparse_tiny", "lstm_sparse"])
def test_the_share_is_covered_and_sets_are_supports(output, arch, tmp_path):
    words = toy.dictionary()
    tau = ["--output-tau", "0.2"] if output == "alpha_relu" else []
    model = toy.model("--output-transform", output, *tau, arch=arch, criterion="").eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    translator = Translator("toy", [], [model], toy.task())
    batches = [
        toy.batch(words, ((6, 5),) * 6 + ((4, 3),) * 6 + ((2, 7),) * 6, seed) for seed in range(3)
    ]
    training = tmp_path / "text"
    training.write_text("w0 w1 w2 w3\n" * 5, encoding="utf-8")
    classes = WordClasses(words, training, "none")
    for of_class in (None, classes):
        rows = calibrate(translator, lambda _: batches, "valid", "valid", [0.5, 0.8], of_class)
        assert len(rows) == (6 if output == "softmax" else 8)
        assert all(row["covered"] >= row["wanted"] for row in rows)
        for small, large in zip(rows[::2], rows[1::2], strict=True):
            assert small["size"] <= large["size"] <= len(words)
        for row in rows if of_class else []:
            found = [part for part in row["by_class"] if part["tokens"]]
            assert [part["least"] for part in found] == [0, 2]
            total = sum(part["tokens"] * part["covered"] for part in found)
            tokens = sum(part["tokens"] for part in found)
            assert total / tokens == pytest.approx(row["covered"])
    # A class that has all words needs what all words need.
    training.write_text(" ".join(words.symbols[words.nspecial :]) + "\n", encoding="utf-8")
    one = WordClasses(words, training, "none")
    for row in calibrate(translator, lambda _: batches, "valid", "valid", [0.6], one):
        (part,) = [part for part in row["by_class"] if part["tokens"]]
        assert part["least"] == 1 and part["parameter"] == row["parameter"]
    if output != "softmax":
        transform = model.decoder.output_projection.transform
        sizes = torch.cat(
            [
                (transform.probs(transform.at_temperature(s.logits, rows[1]["parameter"])) > 0).sum(
                    1
                )
                for batch in batches
                for s in forced_steps([model], batch["net_input"], batch["target"], words.pad())
            ]
        )
        assert rows[1]["sets"] == "temperature"
        assert rows[1]["size"] == pytest.approx(sizes.double().mean().item())
    with pytest.raises(AnalysisError, match="--coverage 0.999"):
        calibrate(translator, lambda _: batches[:1], "valid", "valid", [0.999])
