"""Search with real architectures against each prefix run alone, in full and without padding."""

import math
from argparse import Namespace
from functools import cache

import pytest
import torch

import toy
from automata import beam_search, every_string
from fairseq_sparse.measure.output.support_tree import trees_of
from fairseq_sparse.modules.attention_config import GLOBAL_ATTENTION_KINDS
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS

# The longest source first, as fairseq's LSTM wants them; two of the same length.
SIZES = [(length, 1) for length in (6, 4, 4, 1)]
LSTM = ["--encoder-layers", 2, "--decoder-layers", 2, "--encoder-bidirectional"]
LSTM += ["--encoder-embed-dim", 8, "--encoder-hidden-size", 6]
LSTM += ["--decoder-embed-dim", 8, "--decoder-hidden-size", 10, "--decoder-out-embed-dim", 10]
# The output weights of a model of this package, or of fairseq's LSTM.
LAST_LAYER = ("fc_out.linear.weight", "output_projection.linear.weight", "fc_out.weight")
TRANSFORMER = ["--encoder-embed-dim", 16, "--decoder-embed-dim", 16]

# OUTPUT/ATTENTION is an lstm_sparse, lstm is fairseq's own, transformer a sparse one.
SINGLE = [f"{output}/{kind}" for output in OUTPUT_TRANSFORMS for kind in GLOBAL_ATTENTION_KINDS]
ENSEMBLES = [
    "entmax15/entmax15+sparsemax/softmax+entmax/sparsemax",
    "entmax15/sparsemax+transformer",
    "transformer+alpha_relu/entmax15",
    "sparsemax/entmax15+lstm",
    "lstm+transformer",
]
SPARSE = [case for case in [*SINGLE, *ENSEMBLES] if "lstm" not in case and case[:8] != "softmax/"]


class ModelTable:
    """A model as a table of ``automata``; a seed is the index of a source."""

    normalized = False

    def __init__(self, model, sources, words):
        self.model, self.sources, self.words = model, sources, words

    @cache  # noqa: B019  (tables live as long as the tests)
    @torch.no_grad()
    def logits(self, seed, prefix):
        source = self.sources[seed]
        source = source[source != self.words.pad()][None]
        previous = torch.tensor([[self.words.eos(), *prefix]])
        output = self.model(source, torch.tensor([source.size(1)]), previous)
        log_p = self.model.get_normalized_probs(output, log_probs=True)[0, -1]
        log_p[self.words.pad()] = -math.inf
        return log_p


def make_model(name, task, seed):
    options = {"for_task": task, "seed": seed, "criterion": ""}
    if name == "transformer":
        flags = [*TRANSFORMER, "--output-transform", "entmax15", "--attention", "entmax15"]
        model = toy.model(*flags, **options)
    elif name == "lstm":
        model = toy.model(*LSTM, arch="lstm", **options)
    else:
        output, attention = name.split("/")
        flags = [*LSTM, "--output-transform", output, "--attention", attention]
        model = toy.model(*flags, "--output-tau", 0.1, arch="lstm_sparse", **options)
    for part, parameter in model.named_parameters():
        # Supports should mostly have more than one token, but not all.
        last = part.endswith(LAST_LAYER)
        torch.nn.init.normal_(parameter, std=0.25 if last else 0.5)
    return model.eval()


class Trial:
    """An ensemble, a batch, and the tables of the ensemble's models."""

    def __init__(self, case):
        self.task = toy.task(12)
        words = self.task.target_dictionary
        names = case.split("+")
        self.models = [make_model(name, self.task, seed) for seed, name in enumerate(names)]
        self.sample = toy.batch(words, SIZES)
        sources = self.sample["net_input"]["src_tokens"]
        self.tables = [ModelTable(model, sources, words) for model in self.models]

    def generate(self, exact_search=False, **options):
        self.task.cfg.exact_search = exact_search
        generator = self.task.build_generator(self.models, Namespace(**options))
        return generator.generate(self.models, self.sample)


trial = cache(Trial)


@pytest.mark.each_value
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("case", [*SINGLE, *ENSEMBLES])
def test_beam_search(case, beam):
    it = trial(case)
    for seed, hypos in enumerate(it.generate(beam=beam, nbest=beam, max_len_b=4)):
        expected = beam_search(it.tables, seed, beam, max_len=4)
        found = [(hypo["tokens"].tolist(), not hypo.get("incomplete", False)) for hypo in hypos]
        assert found == [(list(tokens), complete) for _, tokens, complete in expected]
        scores = [hypo["score"].item() for hypo in hypos]
        assert scores == pytest.approx([score for score, _, _ in expected], abs=1e-3)


@pytest.mark.slow_except("entmax15/entmax15")
@pytest.mark.parametrize("case", ["softmax/entmax15", "lstm+transformer", *SPARSE[::3]])
def test_exact_search_finds_every_string(case):
    it, longest = trial(case), 3 if case in SPARSE else 1
    for seed, hypos in enumerate(it.generate(exact_search=True, nbest=10**6, max_len_b=longest)):
        strings = every_string(it.tables, seed, longest)
        expected = {tokens: score / len(tokens) for tokens, score in strings.items()}
        found = {tuple(hypo["tokens"].tolist()): hypo["score"].item() for hypo in hypos}
        if expected:
            assert found.keys() == expected.keys() and hypos[0]["optimal"]
            # Per token, since the logarithm of a probability near the threshold is not accurate.
            means = {tokens: math.exp(score) for tokens, score in found.items()}
            expected = {tokens: math.exp(score) for tokens, score in expected.items()}
            assert means == pytest.approx(expected, abs=1e-5)
        else:
            assert hypos[0]["incomplete"]


@pytest.mark.parametrize("case", SPARSE[::3])
def test_support_tree_has_what_is_possible(case):
    it = trial(case)
    translator = Namespace(models=it.models, task=it.task)
    for seed, tree in trees_of(translator, it.sample, most_nodes=20):
        expanded = [(tree["root"], ())]
        for node, prefix in expanded:
            expected = sum(table.logits(seed, prefix).exp() for table in it.tables)
            found = torch.zeros_like(expected)
            for child in node["children"]:
                token = it.task.target_dictionary.index(child["token"])
                found[token] = child["probability"] * len(it.tables)
                if child["children"]:
                    expanded.append((child, (*prefix, token)))
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
        assert 1 < len(expanded) <= 20


def test_there_are_some_zeros_and_some_choices():
    """Otherwise the tests above would compare little."""
    for case in SPARSE:
        it = trial(case)
        counts = [
            int((table.logits(seed, prefix) > -math.inf).sum())
            for table in it.tables
            for seed in range(len(SIZES))
            for prefix in [(), (5,), (6, 7)]
        ]
        assert min(counts) < 10 and max(counts) > 1, case
