"""SparseDecodingMixin, with which any task can decode sparse models, on fairseq's own tasks."""

import json
from argparse import Namespace
from dataclasses import dataclass

import pytest
import torch
from fairseq.iterative_refinement_generator import IterativeRefinementGenerator
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

import toy
from commands import hypotheses
from fairseq_sparse.generation import SparseSequenceGenerator, SparseSequenceScorer
from fairseq_sparse.tasks import (
    SparseDecodingConfig,
    SparseDecodingMixin,
    TranslationSparseConfig,
)

# A package for --user-dir.
MULTILINGUAL = """
from fairseq.tasks import register_task
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_sparse.tasks import SparseDecodingMixin


@register_task("multilingual_sparse")
class MultilingualSparseTask(SparseDecodingMixin, TranslationMultiSimpleEpochTask):
    pass
"""


def test_two_lines_make_a_stock_task_decode_a_sparse_model(tmp_path):
    """The task has its own ``add_args``, generator class and epoch iterator, and forces the tag of
    the target language."""
    data = toy.binarised_text(tmp_path)
    folder = tmp_path / "multilingual"
    folder.mkdir()
    (folder / "__init__.py").write_text(MULTILINGUAL)
    task = ("--lang-pairs", "de-en", "--decoder-langtok", "--num-workers", 0, "--cpu")
    task = (data, "--user-dir", folder, "--task", "multilingual_sparse", *task)
    toy.run(
        "fairseq_cli.train",
        *(*task, "--arch", "transformer_sparse_tiny", "--criterion", "entmax_loss"),
        *("--output-transform", "entmax15", "--optimizer", "adam", "--lr", 0.01),
        *("--max-tokens", 400, "--max-epoch", 10, "--dropout", 0, "--disable-validation"),
        *("--no-epoch-checkpoints", "--save-dir", tmp_path),
    )
    search = ("--path", tmp_path / "checkpoint_last.pt", "-s", "de", "-t", "en", "--beam", 3)
    search += ("--max-len-b", 9, "--temperature", 0.3)
    report = tmp_path / "report.jsonl"
    result = toy.run("fairseq_cli.generate", *task, *search, "--search-report", report)
    lines = {line["id"]: line for line in map(json.loads, report.read_text().splitlines())}
    found = hypotheses(result.stdout)
    assert sorted(found) == sorted(lines) == list(range(30))
    assert not all(line["incomplete"] for line in lines.values())
    assert all(isinstance(line["exact"], bool) for line in lines.values())
    assert not any("__en__" in words for ((_, words),) in found.values())
    stock = [{"multilingual_sparse": "translation_multi_simple_epoch"}.get(x, x) for x in task]
    result = toy.run("fairseq_cli.generate", *stock, *search, check=False)
    assert result.returncode != 0
    assert "cannot search a model trained with --output-transform entmax15" in result.stderr


@dataclass
class LanguageConfig(SparseDecodingConfig, LanguageModelingConfig):
    pass


class LanguageTask(SparseDecodingMixin, LanguageModelingTask):
    pass


def language_model(transform="entmax15"):
    model = toy.language_model(output_transform=transform).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("nbest", [1, 3])
def test_a_task_without_source_sentences(nbest, tmp_path):
    path = tmp_path / "report.jsonl"
    task = LanguageTask(LanguageConfig(search_report=str(path)), toy.dictionary())
    models = [language_model()]
    prompts = [[5, 6, 7], [8, 9], [10]]
    # As fairseq-interactive has them, EOS in front and padding behind.
    rows = [[2, *prompt, *[1] * (3 - len(prompt))] for prompt in prompts]
    lengths = torch.tensor([len(prompt) + 1 for prompt in prompts])
    net_input = {"src_tokens": torch.tensor(rows), "src_lengths": lengths}
    generator = task.build_generator(models, Namespace(beam=3, nbest=nbest, max_len_b=8, min_len=5))
    assert type(generator) is SparseSequenceGenerator
    found = task.inference_step(generator, models, {"id": torch.arange(3), "net_input": net_input})
    for prompt, hypos in zip(prompts, found, strict=True):
        for hypothesis in hypos:
            length = len(hypothesis["tokens"]) - hypothesis.get("incomplete", False)
            assert hypothesis["tokens"][:length].tolist()[: len(prompt)] == prompt[:length]
    assert len(path.read_text().splitlines()) == len(prompts)


def test_references_are_scored_with_the_last_token_of_the_task():
    """The token of a language, in translation_from_pretrained_bart."""

    class Base(TranslationTask):
        def build_generator(self, models, args, **options):
            return SequenceScorer(self.target_dictionary, eos=7)

    class Ours(SparseDecodingMixin, Base):
        pass

    words = toy.dictionary()
    scorer = Ours(TranslationSparseConfig(), words, words).build_generator(
        [], Namespace(score_reference=True)
    )
    assert isinstance(scorer, SparseSequenceScorer) and scorer.eos == 7
    assert 7 in scorer.symbols_to_strip_from_output


def test_a_language_model_is_not_searched_exactly():
    task = LanguageTask(LanguageConfig(exact_search=True), toy.dictionary())
    with pytest.raises(ValueError, match="--exact-search does not go with a language model"):
        task.build_generator([language_model()], Namespace())


@pytest.mark.parametrize("kind", ["the same", "another order", "another size"])
def test_a_language_model_of_other_tokens_is_refused(kind):
    words = toy.dictionary(21 if kind == "another size" else 20)
    if kind == "another order":
        words.symbols.reverse()
        words.indices = {symbol: place for place, symbol in enumerate(words.symbols)}
    model = language_model()
    model.decoder.dictionary = words
    options = {"extra_gen_cls_kwargs": {"lm_model": model, "lm_weight": 0.5}}
    if kind == "the same":
        toy.task().build_generator([toy.model()], Namespace(), **options)
        return
    with pytest.raises(ValueError, match="--lm-path"):
        toy.task().build_generator([toy.model()], Namespace(), **options)


class Refining(TranslationTask):
    """A task whose generator is not fairseq's usual one."""

    def build_generator(self, models, args, seq_gen_cls=None, **kwargs):
        return IterativeRefinementGenerator(self.target_dictionary)


class RefiningSparse(SparseDecodingMixin, Refining):
    pass


@pytest.mark.parametrize("transform", ["entmax15", "softmax"])
def test_a_generator_that_cannot_be_made_safe_is_refused(transform):
    words = toy.dictionary()
    task = RefiningSparse(TranslationSparseConfig(), words, words)
    models = [toy.model("--output-transform", transform).eval()]
    if transform == "softmax":
        generator = task.build_generator(models, Namespace())
        assert type(generator) is IterativeRefinementGenerator
        return
    with pytest.raises(ValueError, match="decodes with IterativeRefinementGenerator, which cannot"):
        task.build_generator(models, Namespace())


def test_a_generator_is_like_the_one_of_the_task():
    """Every option that a task gives fairseq's generator reaches the one that replaces it."""
    words = toy.dictionary()
    options = {
        **{"beam_size": 3, "max_len_a": 0.5, "max_len_b": 7, "max_len": 9, "min_len": 2},
        **{"normalize_scores": False, "len_penalty": 0.3, "unk_penalty": 0.2, "temperature": 0.7},
        **{"match_source_len": True, "no_repeat_ngram_size": 3, "lm_weight": 0.4, "eos": 5},
        **{"symbols_to_strip_from_output": {7}, "tokens_to_suppress": ("w2",)},
    }
    stock = SequenceGenerator([toy.model()], words, lm_model=language_model(), **options)
    ours = SparseSequenceGenerator.from_generator(stock, nbest=2)
    for name, value in options.items():
        if name not in ("no_repeat_ngram_size", "tokens_to_suppress"):
            assert getattr(ours, name) == getattr(stock, name), name
            assert name == "symbols_to_strip_from_output" or getattr(ours, name) == value, name
    assert ours.repeat_ngram_blocker.size == 3 and ours.nbest == 2
    assert ours.token_indices_to_suppress.tolist() == [words.index("w2")]
    assert ours.lm_model is stock.lm_model and ours.search.strategy is stock.search
    assert [model.model for model in ours.model.models] == list(stock.model.models)
    assert {model.temperature for model in ours.model.models} == {0.7}
