"""Small trained runs for the tests of the report, on text that could break a page."""

import json
import random
from pathlib import Path

import toy
from fairseq_sparse.commands import cli

WORDS = ["<b>bold</b>", "</script><script>alert(1)</script>", "<!--", "&amp;", '"quoted"', "it's"]
WORDS += ["שלום", "漢字", "{{title}}", "Ærø", "\\u003c", "`x`"]
# A model with a sparse output, and attention with null rows, zeros and, in the encoder, weights
# below 0; and fairseq's own model.
RUNS = {
    "sparse <i>": ["--arch", "transformer_sparse_tiny", "--task", "translation_sparse"]
    + ["--output-transform", "entmax15", "--criterion", "entmax_loss", "--max-epoch", "12"]
    + ["--attention", "rela_g", "--attention-enc", "rela_g_leaky_relu"],
    "stock": ["--arch", "transformer_tiny", "--task", "translation", "--max-epoch", "1"],
}


# In the format of fairseq_sparse/recipes/evaluation.py and of fairseq-sparse analyze alignment.
SUMMARY = {
    "dataset": "wmt14_en_fr",
    "variant": "rela_g",
    "settings": "",
    "bleu": {"bleu": 12.5, "signature": "tok:13a|<v>", "empty_translations": 0},
    "generation": {"sentences_per_second": 80.0},
    "test": {"nonzeros": 2.5, "prob_sum": 1.0, "gold_zero": 0.25, "accuracy": 91.5},
    "attention": {"encoder": {"sparsity": 0.5, "null": 0.25}},
    "training": {"updates": 1234, "seconds": 90.0, "words_per_second": 1000.0},
    "hardware": {"cpu": "a CPU", "threads": 1, "gpus": []},
}
_RATES = {"layers": [{"layer": 1, "average": 0.5, "heads": [0.25, 0.75], "best_head": 1}]}
ALIGNMENT = {"folders": [{"head_numbers": [1, 2], "normal": {**_RATES, "aoh": 0.25, "aol": 0.5}}]}


def binarised_words(folder: Path, sentences: int = 12) -> Path:
    """Binarise sentences of ``WORDS`` and their reversals; return the folder."""
    rng = random.Random(5)
    for split, count in (("train", 200), ("valid", 20), ("test", sentences)):
        lines = [rng.choices(WORDS, k=rng.randint(2, 6)) for _ in range(count)]
        for language, words in (("de", lines), ("en", [line[::-1] for line in lines])):
            text = "".join(" ".join(line) + "\n" for line in words)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return toy.binarise(folder)


def train_run(folder: Path, data: Path, *flags: str) -> Path:
    """Train a run; return a folder as the stages leave it: ``average.pt``, a log, no summary."""
    # At a rate of 0.01, rectified attention may lose all weights in either environment.
    checkpoint, log = toy.train(
        folder,
        data,
        *("--lr", 0.003, "--max-tokens", 400, "--max-update", 0),
        *("--no-epoch-checkpoints", "--log-format", "json", "--log-interval", 2, *flags),
    )
    checkpoint.rename(folder / "average.pt")
    (folder / "logs").mkdir()
    (folder / "logs" / "train.log").write_text(log, encoding="utf-8")
    return folder


def train_runs(folder: Path) -> tuple[Path, list[Path]]:
    """Train the ``RUNS``; return the data and the folders, the first of which has results."""
    data = binarised_words(folder)
    folders = [train_run(folder / name, data, *flags) for name, flags in RUNS.items()]
    for name, content in (("summary", SUMMARY), ("alignment", ALIGNMENT)):
        (folders[0] / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return data, folders


def page_of(folders: list[Path], sentences: int) -> str:
    """Return the report of some runs."""
    path = folders[0].parent / "report.html"
    arguments = ["--output", path, "--sentences", sentences, "--cpu"]
    assert cli.run("report", [*map(str, [*folders, *arguments])]) == 0
    return path.read_text(encoding="utf-8")


def data_in(page: str) -> dict:
    """Return the data block of a page, found as a browser finds it."""
    start = page.index(">", page.index('<script type="application/json"')) + 1
    return json.loads(page[start : page.index("</script", start)])
