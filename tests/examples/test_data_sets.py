"""The files of examples/datasets: their flags for fairseq-train and fairseq-generate."""

from __future__ import annotations

import pytest
from fairseq import options

from miniatures import LAYOUTS, languages_of
from recipes import USER_DIR
from recipes import loaded as recipe


@pytest.mark.each_value
@pytest.mark.parametrize("config", ["cpu", "gpu"])
@pytest.mark.parametrize("dataset", [*LAYOUTS, "shared/template"])
def test_flags_are_understood_and_fit_the_dictionaries(dataset: str, config: str) -> None:
    show = '"$SOURCE_LANG $TARGET_LANG" "$DICTIONARY" "${#GENERATE[@]}" "${GENERATE[@]}"'
    languages, dictionary, count, *flags = recipe(
        dataset, config, f'{show} "${{DATASET_FLAGS[@]}}" "${{VARIANT_FLAGS[@]}}"'
    )
    expected = ("ja", "en") if dataset == "shared/template" else languages_of(dataset)
    assert tuple(languages.split()) == expected
    common = ["data", "--user-dir", USER_DIR]
    parser = options.get_generation_parser(default_task="translation_sparse")
    options.parse_args_and_arch(parser, [*common, "--path", "x.pt", *flags[: int(count)]])
    parser = options.get_training_parser("translation_sparse")
    args = options.parse_args_and_arch(parser, [*common, *flags[int(count) :]])
    if args.arch == "lstm_sparse_mt":
        assert dictionary == "separate"
        every = 5000 if dataset.startswith("iwslt17") else 10_000
        assert args.validate_interval_updates == args.save_interval_updates == every
        assert args.lr_compare_with == "previous" and args.attention_bias
        return
    assert args.share_all_embeddings == (dictionary == "joined")
    assert args.share_all_embeddings or args.share_decoder_input_output_embed
    assert args.fp16 == (config == "gpu")


@pytest.mark.parametrize(
    "dataset",
    ["wmt14_en_de_32k", "wmt14_en_fr", "wmt18_en_fi", "wmt18_zh_en", "wmt16_ro_en_32k"],
)
def test_data_sets_of_rela_are_trained_as_the_paper_says(dataset: str) -> None:
    show = '"$BPE_MERGES $BATCH_TOKENS $BATCH_SIDE $LABEL_SMOOTHING $CHECKPOINTS $AVERAGE_LAST"'
    show += ' "$DICTIONARY" "${DATASET_FLAGS[@]}"'
    batch, dictionary, *flags = recipe(dataset, "gpu", show, "rela")
    assert batch == "32000 25000 target 0.1 updates 5" and dictionary == "separate"
    assert "--share-decoder-input-output-embed" in flags and "--share-all-embeddings" not in flags
