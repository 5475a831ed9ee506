"""fairseq's commands on small data, and what they print."""

import json
import re

import toy


def train(data, save_dir, *flags, check=True, **options):
    return toy.run(
        "fairseq_cli.train",
        *(data, "--user-dir", toy.USER_DIR, "--save-dir", save_dir, "--cpu"),
        *("--source-lang", "de", "--target-lang", "en", "--task", "translation_sparse"),
        *("--arch", "transformer_sparse_tiny", "--share-all-embeddings", "--dropout", "0.1"),
        *("--encoder-normalize-before", "--decoder-normalize-before"),
        *("--optimizer", "adam", "--lr", "0.01", "--max-tokens", "400", "--log-format", "json"),
        *flags,
        check=check,
        **options,
    )


def generate(data, path, *flags, command="fairseq_cli.generate", check=True):
    return toy.run(
        command,
        *(data, "--user-dir", toy.USER_DIR, "--path", path, "--cpu", "--max-tokens", "600"),
        *("--source-lang", "de", "--target-lang", "en"),
        *(flags if "--task" in flags else ("--task", "translation_sparse", *flags)),
        check=check,
    )


def hypotheses(output):
    """Sentence number -> the (score, words) of its hypotheses, in the order printed."""
    found = {}
    for number, score, words in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.MULTILINE):
        found.setdefault(int(number), []).append((float(score), words))
    return found


def logged(output, tag):
    """The JSON records that fairseq logged under a tag ("train", "valid")."""
    return [json.loads(line) for line in re.findall(rf"\| {tag} \| (\{{.*\}})", output)]
