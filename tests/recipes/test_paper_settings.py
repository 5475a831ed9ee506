"""The values of the papers, checked by hand against their texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fairseq import options as fairseq_options

from fairseq_sparse.models.transformer_sparse import FUSED_COPIES, TransformerSparseModel
from fairseq_sparse.recipes.plan import as_arguments
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve
from random_models import translation_task
from toy import USER_DIR

SUE = ("iwslt14_de_en", "wmt14_en_de", "wmt13_en_ru")
RELA = ("wmt14_en_de_32k", "wmt14_en_fr", "wmt18_en_fi", "wmt18_zh_en", "wmt16_ro_en_32k")
S2S = ("iwslt17_de_en", "iwslt17_en_de", "kftt_ja_en", "kftt_en_ja", "wmt16_ro_en", "wmt16_en_ro")
INFLECTION = tuple(
    f"sigmorphon2018_{name}" for name in ("medium", "high", "medium_part", "high_part")
)


def recipe(dataset: str, **options: Any) -> Recipe:
    return resolve(dataset, "softmax", Options(**options))


def arguments(found: Recipe):
    """Return the flags of fairseq-train as it reads them."""
    parser = fairseq_options.get_training_parser("translation_sparse")
    flags = as_arguments({**found.task, **found.training.flags, **found.model.flags})
    return fairseq_options.parse_args_and_arch(parser, ["data", "--user-dir", USER_DIR, *flags])


@pytest.mark.parametrize("config", ["cpu", "gpu"])
@pytest.mark.parametrize("dataset", SUE)
def test_sue_trains_as_the_paper_says(dataset: str, config: str) -> None:
    found, wmt = recipe(dataset, settings="sue", config=config), dataset.startswith("wmt")
    args, training, corpus = arguments(found), found.training, found.corpus
    assert (args.encoder_attention_heads, args.decoder_attention_heads) == (8, 8)
    assert (args.encoder_embed_dim, args.encoder_layers, args.decoder_layers) == (512, 6, 6)
    assert args.encoder_ffn_embed_dim == args.decoder_ffn_embed_dim == (2048 if wmt else 1024)
    assert args.adam_betas == "(0.9, 0.998)" and args.weight_decay == 0
    assert args.dropout == (0.1 if dataset == "wmt14_en_de" else 0.3)
    assert args.attention_dropout == 0.1
    assert args.output_init == "xavier_uniform"
    assert (args.store_ema, args.share_all_embeddings, training.exponential) == (wmt, wmt, wmt)
    assert not wmt or args.ema_decay == pytest.approx(1 - 0.0005)
    assert args.eval_bleu and args.best_checkpoint_metric == "bleu"
    assert args.maximize_best_checkpoint_metric
    assert json.loads(args.eval_bleu_detok_args) == {"target_lang": corpus.target}
    merges = {"iwslt14_de_en": 10_000, "wmt14_en_de": 40_000, "wmt13_en_ru": 60_000}
    assert corpus.bpe_merges == merges[dataset] and not corpus.separate_bpe
    batch = 4 * 4096 if wmt else 8 * 4096
    assert (training.batch, training.unit, training.device_batch) == (batch, "tokens", 4096)
    assert (training.checkpoints, args.label_smoothing) == ("best", 0)


@pytest.mark.parametrize("config", ["cpu", "gpu"])
@pytest.mark.parametrize("dataset", RELA)
def test_rela_trains_as_the_paper_says(dataset: str, config: str) -> None:
    found = recipe(dataset, settings="rela", config=config)
    args, training, corpus = arguments(found), found.training, found.corpus
    assert corpus.bpe_merges == 32_000 and not corpus.joined_dictionary
    assert (training.batch, training.unit) == (30_000, "tokens")  # some 25,000 of the target
    assert (training.checkpoints, training.average) == ("updates", 5)
    assert args.share_decoder_input_output_embed and not args.share_all_embeddings
    assert (args.dropout, args.attention_dropout) == (0.1, 0.1)
    assert args.adam_betas == "(0.9, 0.98)" and args.label_smoothing == 0.1
    assert not args.encoder_normalize_before and not args.decoder_normalize_before
    assert (found.decoding.flags["beam"], found.decoding.flags["lenpen"]) == (4, 0.6)


@pytest.mark.parametrize(
    ("dataset", "settings", "factor", "warm_up"),
    [(name, "sue", 2.0, 8000 if name.startswith("wmt") else 4000) for name in SUE]
    + [(name, "rela", 1.0, 4000) for name in RELA],
)
def test_the_learning_rate_is_noam_s(
    dataset: str, settings: str, factor: float, warm_up: int
) -> None:
    """Noam is linear to its peak, and the inverse square root after it."""
    flags = recipe(dataset, settings=settings).training.flags
    assert flags["lr-scheduler"] == "inverse_sqrt" and flags["warmup-updates"] == warm_up
    peak = factor * 512**-0.5 * warm_up**-0.5
    assert float(flags["lr"]) == pytest.approx(peak, rel=1e-4)
    assert float(flags["warmup-init-lr"]) == pytest.approx(peak / warm_up, rel=1e-3)


@pytest.mark.parametrize(
    ("dataset", "vocabulary", "millions"),
    [("iwslt14_de_en", 10_000, 46.9), ("wmt14_en_de", 40_000, 64.6), ("wmt13_en_ru", 60_000, 74.9)],
)
def test_sue_s_models_have_the_paper_s_number_of_parameters(
    dataset: str, vocabulary: int, millions: float
) -> None:
    """The paper has 47, 75 and 75 million; no sharing of embeddings gives its 75 for En-De."""
    args = arguments(recipe(dataset, settings="sue", config="gpu"))
    args.dropout = args.attention_dropout = args.activation_dropout = 0.0
    with torch.device("meta"):
        model = TransformerSparseModel.build_model(args, translation_task(vocabulary))
    # Without the copies that fairseq 0.12.2 keeps for its fused layers and never trains.
    count = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not FUSED_COPIES.search(f".{name}")
    )
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize("dataset", [*S2S, *INFLECTION])
def test_lstms_are_trained_as_the_paper_says(dataset: str) -> None:
    found = recipe(dataset)
    args, training = arguments(found), found.training
    width = 300 if dataset in INFLECTION else 500
    assert (args.encoder_layers, args.decoder_layers, args.dropout) == (2, 2, 0.3)
    assert args.decoder_hidden_size == 2 * args.encoder_hidden_size == width
    assert args.encoder_bidirectional and args.attention_bias
    assert (training.batch, training.unit, training.checkpoints) == (64, "sentences", "best")
    assert (args.optimizer, args.lr, args.lr_shrink) == ("adam", [1e-3], 0.5)
    assert args.lr_scheduler == "reduce_lr_on_valid_loss" and args.lr_compare_with == "previous"
    assert found.decoding.flags["beam"] == 5 and found.decoding.validation
    if dataset in INFLECTION:
        assert args.validate_interval == (10 if "medium" in dataset else 1)
        assert found.decoding.score == "accuracy"
        return
    every, updates, merges = 10_000, 100_000, 32_000
    if dataset.startswith("iwslt17"):
        every = 5000
    elif dataset.startswith("wmt16"):
        updates, merges = 120_000, 25_000
    assert args.validate_interval_updates == args.save_interval_updates == every
    assert (args.max_update, found.corpus.bpe_merges) == (updates, merges)
    assert found.corpus.separate_bpe == dataset.startswith("wmt16")


@pytest.mark.parametrize("name", ["medium", "high"])
def test_all_languages_of_inflection_are_the_paper_s(name: str) -> None:
    whole, part = recipe(f"sigmorphon2018_{name}"), recipe(f"sigmorphon2018_{name}_part")
    assert whole.corpus.language_count == {"medium": 102, "high": 86}[name]
    assert part.training == whole.training and part.note
