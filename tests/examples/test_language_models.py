"""The recipes of language models, on miniatures in the layout of each data set's home."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from fairseq import options

import archives
import recipes

DATASETS = ("multi30k_en", "tinyshakespeare", "wikitext103")
TINY = (
    "--decoder-layers 1 --decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 "
    "--decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --dropout 0 "
    "--max-epoch 2 --lr 1e-2 --warmup-updates 10 --required-batch-size-multiple 1"
)
WORDS = "the king shall speak and all his men will hear what he says to them".split()


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(2, 8))).capitalize() for _ in range(count)]


def miniature(dataset: str, folder: Path) -> dict[str, list[str]]:
    """Write the raw files of a data set; return the lines that a model must see, before BPE."""
    folder.mkdir()
    parts = {"train": sentences(200, 1), "valid": sentences(20, 2), "test": sentences(20, 3)}
    if dataset == "multi30k_en":
        for split, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
            text = "".join(f"{line}.\n" for line in parts[split]).encode()
            (folder / f"{name}.en.gz").write_bytes(gzip.compress(text))
        return {split: [f"{line} ." for line in lines] for split, lines in parts.items()}
    if dataset == "wikitext103":
        for lines in parts.values():
            lines[5], lines[6] = "", "= A <unk> heading ="
        members = {
            f"wikitext-103/wiki.{split}.tokens": "".join(f" {line} \n" for line in lines).encode()
            for split, lines in parts.items()
        }
        (folder / "wikitext-103-v1.zip").write_bytes(archives.zipped(members))
        return parts
    speeches = [[f"{line}:", f"{line}, and more."] for line in sentences(200, 4)]
    text = "\n\n".join("\n".join(speech) for speech in speeches) + "\n"
    (folder / "input.txt.gz").write_bytes(gzip.compress(text.encode()))
    whole = [
        f"{first[:-1]} : <nl> {second[: -len(', and more.')]} , and more ."
        for first, second in speeches
    ]
    return {"train": whole[:180], "valid": whole[180:190], "test": whole[190:]}


def run(dataset: str, folder: Path, *options: object, variant: str = "entmax15", **variables):
    merges = None if dataset == "wikitext103" else 30
    return recipes.run(
        *("run.sh", dataset, variant, "--cpu", "--data-dir", folder / "Daten, hier"),
        *("--run-dir", folder / variant, *options),
        **{"BPE_MERGES": merges, "RAW_DIR": folder / "raw", "TRAIN_FLAGS": TINY, **variables},
    )


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_text_is_that_of_the_raw_files(dataset: str, tmp_path: Path) -> None:
    expected = miniature(dataset, tmp_path / "raw")
    printed = run(dataset, tmp_path, "--stages", "prepare").stdout
    prepared = tmp_path / "Daten, hier" / "prepared"
    for split, lines in expected.items():
        found = (prepared / "text" / split).read_text().splitlines()
        assert [line.replace("@@ ", "") for line in found] == lines
        assert (prepared / "bin" / f"{split}.bin").is_file()
    vocabulary = (prepared / "bin" / "dict.txt").read_text().splitlines()
    assert f"vocabulary: {len(vocabulary)} entries" in printed
    if dataset == "tinyshakespeare":
        assert any(line.startswith("<nl> ") for line in vocabulary)
        assert any("@@" in line for line in vocabulary)


@pytest.mark.each_value
@pytest.mark.parametrize("config", ["cpu", "gpu"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_flags_are_understood(dataset: str, config: str) -> None:
    show = '"${#TASK_FLAGS[@]}" "${TASK_FLAGS[@]}" "${#GENERATE[@]}" "${GENERATE[@]}"'
    show += ' "${#EVALUATE[@]}" "${EVALUATE[@]}" "${DATASET_FLAGS[@]}" "${VARIANT_FLAGS[@]}"'
    values = iter(recipes.loaded(dataset, config, show))
    task, generate, evaluate = ([next(values) for _ in range(int(next(values)))] for _ in range(3))
    common = ["data", "--user-dir", recipes.USER_DIR, *task]
    for parser, flags in (
        (options.get_training_parser(), [*values]),
        (options.get_interactive_generation_parser(), ["--path", "x.pt", *generate]),
        (options.get_eval_lm_parser(), ["--path", "x.pt", *evaluate]),
    ):
        args = options.parse_args_and_arch(parser, [*common, *flags])
        assert args.task == "language_modeling_sparse"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "variant"), [("tinyshakespeare", "softmax"), ("wikitext103", "rela_g_alpha_relu")]
)
def test_from_raw_text_to_measures_and_samples(dataset: str, variant: str, tmp_path: Path) -> None:
    miniature(dataset, tmp_path / "raw")
    printed = run(dataset, tmp_path, variant=variant).stdout
    folder = tmp_path / variant
    measures = json.loads((folder / "measures.json").read_text())
    prepared = tmp_path / "Daten, hier" / "prepared" / "text"
    for subset in ("valid", "test"):
        lines = (prepared / subset).read_text().splitlines()
        assert measures[subset]["tokens"] == sum(len(line.split()) + 1 for line in lines)
        assert 0 < measures[subset]["sparsemax_score"] < 1 < measures[subset]["eps_ppl"]
    samples = (folder / "samples.txt").read_text()
    assert samples.count("\n\n") >= 9 and "<nl>" not in samples and "@@" not in samples
    assert "nothing to do: a language model has no source" in printed
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"] == measures["test"] and summary["training"]["updates"] > 0
    assert f"| {summary['variant_name'] or variant} " in printed and "sparsemax score" in printed
    again = run(dataset, tmp_path, variant=variant).stdout
    assert f"done already: {folder / 'measures.json'}" in again
    assert "training from the start" not in again
    # A mistyped setting costs no results.
    refused = run(
        dataset, tmp_path, variant=variant, check=False, GENERATE_FLAGS="--sampling-topp nine"
    )
    assert refused.returncode != 0 and "nine" in refused.stdout
    assert json.loads((folder / "measures.json").read_text()) == measures
    assert json.loads((folder / "summary.json").read_text()) == summary
