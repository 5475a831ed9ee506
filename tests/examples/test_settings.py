"""The settings of the papers: their flags for fairseq, and miniature runs with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from fairseq.optim.lr_scheduler.inverse_square_root_schedule import (
    InverseSquareRootLRScheduleConfig,
    InverseSquareRootSchedule,
)
from omegaconf import OmegaConf

import recipes
from fairseq_sparse.analysis.random_models import translation_task
from fairseq_sparse.models.transformer_sparse import FUSED_COPIES, TransformerSparseModel
from miniatures import build
from recipes import USER_DIR
from recipes import loaded as recipe

SUE = ("iwslt14_de_en", "wmt14_en_de", "wmt13_en_ru")
FLAGS = '"${DATASET_FLAGS[@]}" "${VARIANT_FLAGS[@]}"'


def parsed(dataset: str, settings: str, config: str = "gpu"):
    flags = recipe(dataset, config, FLAGS, settings)
    parser = options.get_training_parser("translation_sparse")
    return options.parse_args_and_arch(parser, ["data", "--user-dir", USER_DIR, *flags])


@pytest.mark.each_value
@pytest.mark.parametrize("config", ["cpu", "gpu"])
@pytest.mark.parametrize("dataset", SUE)
def test_sue_trains_as_the_paper_says(dataset: str, config: str) -> None:
    args, wmt = parsed(dataset, "sue", config), dataset.startswith("wmt")
    assert (args.encoder_attention_heads, args.decoder_attention_heads) == (8, 8)
    assert (args.encoder_embed_dim, args.encoder_layers, args.decoder_layers) == (512, 6, 6)
    assert args.encoder_ffn_embed_dim == args.decoder_ffn_embed_dim == (2048 if wmt else 1024)
    assert args.adam_betas == "(0.9, 0.998)" and args.weight_decay == 0
    assert args.dropout == (0.1 if dataset == "wmt14_en_de" else 0.3)
    assert args.attention_dropout == 0.1
    assert args.output_init == "xavier_uniform"
    assert (args.store_ema, args.share_all_embeddings) == (wmt, wmt)
    assert args.ema_decay == pytest.approx(1 - 0.0005) if wmt else True
    assert args.eval_bleu and args.best_checkpoint_metric == "bleu"
    assert args.maximize_best_checkpoint_metric
    assert json.loads(args.eval_bleu_detok_args) == {
        "target_lang": args.target_lang or dataset[-2:]
    }
    show = '"$BATCH_TOKENS $DEVICE_TOKENS $LABEL_SMOOTHING $CHECKPOINTS $BPE_MERGES"'
    batch, merges = (16_384, {"de": 40_000, "ru": 60_000}) if wmt else (32_768, {"en": 10_000})
    expected = f"{batch} 4096 0 best {merges[dataset[-2:]]}"
    assert recipe(dataset, config, show, "sue") == [expected]


@pytest.mark.parametrize(
    ("dataset", "settings", "factor", "warm_up"),
    [(name, "sue", 2.0, 8000 if name.startswith("wmt") else 4000) for name in SUE]
    + [("wmt14_en_de_32k", "rela", 1.0, 4000)],
)
def test_the_learning_rate_is_noam_s(dataset, settings, factor, warm_up) -> None:
    args = parsed(dataset, settings)
    assert args.lr_scheduler == "inverse_sqrt"
    adam = FairseqAdamConfig(lr=args.lr, tpu=False)
    optimizer = FairseqAdam(OmegaConf.structured(adam), [torch.nn.Parameter(torch.zeros(1))])
    cfg = InverseSquareRootLRScheduleConfig(
        warmup_updates=args.warmup_updates, warmup_init_lr=args.warmup_init_lr, lr=args.lr
    )
    schedule = InverseSquareRootSchedule(cfg, optimizer)
    for done in (0, 1, 100, warm_up // 2, warm_up - 1, 2 * warm_up, 100_000):
        step = done + 1
        noam = factor * 512**-0.5 * min(step**-0.5, step * warm_up**-1.5)
        assert schedule.step_update(done) == pytest.approx(noam, rel=2e-3), done


@pytest.mark.parametrize(
    ("dataset", "vocabulary", "millions"),
    [("iwslt14_de_en", 10_000, 46.9), ("wmt14_en_de", 40_000, 64.6), ("wmt13_en_ru", 60_000, 74.9)],
)
def test_sue_s_models_have_the_paper_s_number_of_parameters(dataset, vocabulary, millions) -> None:
    """The paper has 47, 75 and 75 million; no sharing of embeddings gives its 75 for En-De."""
    args = parsed(dataset, "sue")
    args.dropout = args.attention_dropout = args.activation_dropout = 0.0
    model = TransformerSparseModel.build_model(args, translation_task(vocabulary))
    # Without the copies that fairseq 0.12.2 keeps for its fused layers and never trains.
    count = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not FUSED_COPIES.search(f".{name}")
    )
    assert round(count / 1e6, 1) == millions


MINIATURES = {
    # Data set: settings, variant, flags of a model and a training that take seconds.
    "wmt13_en_ru": ("sue", "alpha_relu", "--max-epoch 3 --ema-start-update 3 --ema-decay 0.5"),
    "iwslt14_de_en": ("sue", "entmax15", "--max-epoch 2"),
    "wmt14_en_de_32k": ("rela", "rela_g", "--max-epoch 3"),
    "iwslt17_de_en": ("", "entmax15", "--encoder-embed-dim 16 --encoder-hidden-size 8"),
}
# One line: the recipes split TRAIN_FLAGS at spaces.
SMALL = "--encoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
SMALL += "--decoder-layers 1 --decoder-embed-dim 32 --decoder-ffn-embed-dim 32"
SMALL_LSTM = "--decoder-embed-dim 16 --decoder-hidden-size 16 --decoder-out-embed-dim 16"


@pytest.mark.slow
@pytest.mark.parametrize("dataset", MINIATURES)
def test_from_archives_to_a_score(dataset: str, tmp_path: Path) -> None:
    settings, variant, flags = MINIATURES[dataset]
    raw = tmp_path / "raw"
    raw.mkdir()
    build(dataset, raw)
    command = [dataset, variant, "--cpu", "--data-dir", tmp_path / "data", "--run-dir", tmp_path]
    output = recipes.run(
        "run.sh",
        *(command + (["--settings", settings] if settings else [])),
        RAW_DIR=raw,
        BPE_MERGES=30,
        BATCH_TOKENS=400,
        DEVICE_TOKENS=400,
        SAVE_UPDATES=1,
        VALIDATE_UPDATES=3,
        MAX_UPDATE=10,
        BATCH_SENTENCES=16 if dataset == "iwslt17_de_en" else None,
        TRAIN_FLAGS=f"{SMALL if settings else SMALL_LSTM} {flags} --lr 1e-2 --warmup-updates 5"
        " --num-workers 0",
        GENERATE_FLAGS="--max-len-b 20",
    ).stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    score = summary["bleu"]
    assert summary["settings"] == settings and score["sentences"] > 0
    assert "tok:13a" in score["signature"] and "case:mixed" in score["signature"]
    assert "tok:none" in score["tokenized_signature"] and 0 <= score["tokenized_bleu"] <= 100
    averaged = (tmp_path / "settings" / "average").read_text().splitlines()[0]
    if settings == "sue":
        assert '"valid_bleu"' in output
        exponential = ", exponential average" if dataset == "wmt13_en_ru" else ""
        assert averaged == f"checkpoint best{exponential}"
    elif settings == "rela":
        assert averaged == "average_last 5 by updates"
        names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        assert sum(name.startswith("checkpoint_") for name in names) == 7  # five, last and best
        assert "target tokens on average" in output
    else:
        assert {"exact", "optimal", "single"} <= set(summary["valid"]["search"])
        assert summary["valid"]["nonzeros"] > 0
        assert [line for line in output.splitlines() if '"valid_num_updates": "3"' in line]
