"""Small things that many tests need: a task without data, models, batches, binarised toy text."""

import os
import random
import subprocess
from argparse import SUPPRESS, ArgumentParser
from dataclasses import fields
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from omegaconf import OmegaConf

import fairseq_sparse
from fairseq_sparse.models.transformer_lm_sparse import TransformerLMSparseConfig
from fairseq_sparse.tasks.translation_sparse import (
    TranslationSparseConfig,
    TranslationSparseTask,
)
from fork_python import PYTHON

ROOT = Path(fairseq_sparse.__file__).resolve().parent.parent
USER_DIR = str(ROOT / "fairseq_sparse")


SMALL_LM = {
    "decoder_embed_dim": 16,
    "decoder_input_dim": 16,
    "decoder_output_dim": 16,
    "decoder_ffn_embed_dim": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "tokens_per_sample": 12,
}


def dictionary(size=20):
    """Return a dictionary of ``size`` entries, including the four special symbols."""
    result = Dictionary()
    for index in range(size - len(result)):
        result.add_symbol(f"w{index}")
    return result


def task(size=20, **options):
    words = dictionary(size)
    return TranslationSparseTask(TranslationSparseConfig(**options), words, words)


def flags(*given, arch="transformer_sparse_tiny", **extra):
    """Return the settings of a model as ``fairseq-train --arch ARCH FLAGS`` reads them."""
    parser = ArgumentParser(argument_default=SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = parser.parse_args([str(flag) for flag in given])
    for name, value in extra.items():
        setattr(args, name, value)
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def model(*given, arch="transformer_sparse_tiny", for_task=None, seed=1, **extra):
    """Build a model as ``fairseq-train --arch ARCH FLAGS`` does."""
    args = flags(*given, arch=arch, **extra)
    torch.manual_seed(seed)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, for_task or task())


def language_model(arch="transformer_lm_sparse", seed=1, criterion=None, **options):
    """Build a language model as ``--task language_modeling`` does."""
    config = TransformerLMSparseConfig if "sparse" in arch else TransformerLanguageModelConfig
    defaults = {field.name: field.default for field in fields(config)}
    # Settings that come from the task's flags.
    task_flags = {"add_bos_token": False, "max_target_positions": None, "tpu": False}
    words = dictionary()
    torch.manual_seed(seed)
    settings = {**defaults, **task_flags, **SMALL_LM, **options, "_name": arch}
    run = OmegaConf.create({"model": settings, "criterion": criterion and {"_name": criterion}})
    return build_model(run.model, LanguageModelingTask(LanguageModelingConfig(), words))


def batch(words, sizes=((4, 3), (6, 5), (2, 7)), seed=0):
    """Draw sentence pairs of the given (source, target) lengths, padded like fairseq's."""
    generator = torch.Generator().manual_seed(seed)
    pad, eos = words.pad(), words.eos()
    count = len(sizes)
    src = torch.full((count, max(s for s, _ in sizes) + 1), pad)
    target = torch.full((count, max(t for _, t in sizes) + 1), pad)
    previous = target.clone()
    for row, (src_len, tgt_len) in enumerate(sizes):
        src[row, -src_len - 1 : -1] = torch.randint(4, len(words), (src_len,), generator=generator)
        src[row, -1] = eos
        sentence = torch.randint(4, len(words), (tgt_len,), generator=generator)
        target[row, :tgt_len], target[row, tgt_len] = sentence, eos
        previous[row, 0], previous[row, 1 : tgt_len + 1] = eos, sentence
    return {
        "id": torch.arange(count),
        "nsentences": count,
        "ntokens": sum(t + 1 for _, t in sizes),
        "net_input": {
            "src_tokens": src,
            "src_lengths": torch.tensor([s + 1 for s, _ in sizes]),
            "prev_output_tokens": previous,
        },
        "target": target,
    }


def run(module, *arguments, check=True, env=None, python=PYTHON, input=None, together=False):
    """Run ``python -m MODULE ARGUMENTS`` with the project and its scripts importable.

    With ``together``, standard error goes to standard output.
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {})}
    result = subprocess.run(
        [python, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        encoding="utf-8",
        env=environment,
        input=input,
        timeout=600,
    )
    if check and result.returncode != 0:
        output = (result.stdout + (result.stderr or ""))[-6000:]
        raise AssertionError(f"{module} failed with {result.returncode}:\n{output}")
    return result


def command(name, *arguments, **options):
    """Run ``fairseq-sparse NAME ARGUMENTS``; for the options see :func:`run`."""
    return run("fairseq_sparse", *name.split(), *arguments, **options)


def binarised_text(folder: Path, pairs=300, words=25, seed=3, python=PYTHON) -> Path:
    """Binarise a reversal task (``a b c`` to ``C B A``); return its folder."""
    rng = random.Random(seed)
    for split, count in (("train", pairs), ("valid", 40), ("test", 30)):
        with open(folder / f"{split}.de", "w") as de, open(folder / f"{split}.en", "w") as en:
            for _ in range(count):
                sentence = [f"w{rng.randrange(words)}" for _ in range(rng.randint(2, 6))]
                de.write(" ".join(sentence) + "\n")
                en.write(" ".join(word.upper() for word in reversed(sentence)) + "\n")
    return binarise(folder, python)


def binarise(folder: Path, python=PYTHON) -> Path:
    """Run ``fairseq-preprocess`` on the texts ``train``, ``valid`` and ``test`` of a folder."""
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    run(
        "fairseq_cli.preprocess",
        *("--source-lang", "de", "--target-lang", "en", "--joined-dictionary", *prefixes),
        *("--destdir", folder / "bin"),
        python=python,
    )
    return folder / "bin"


def binarise_test(folder: Path, dictionary: Path) -> Path:
    """Run ``fairseq-preprocess`` on the text ``test`` of a folder, with a given dictionary."""
    run(
        "fairseq_cli.preprocess",
        *("--source-lang", "de", "--target-lang", "en", "--testpref", folder / "test"),
        *("--srcdict", dictionary, "--joined-dictionary", "--destdir", folder / "bin"),
    )
    return folder / "bin"


def with_a_long_pair(folder: Path, data: Path) -> Path:
    """Binarise a test set of three sentence pairs; the second has 30 words on each side."""
    for language, word in (("de", "w1"), ("en", "W1")):
        lines = [" ".join([word] * length) for length in (3, 30, 5)]
        (folder / f"test.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return binarise_test(folder, data / "dict.de.txt")


def train(folder: Path, data: Path, *flags):
    """Train a model, by default for three updates.

    Returns:
        the path of ``checkpoint_last.pt``, and what was printed
    """
    result = run(
        "fairseq_cli.train",
        *(data, "--user-dir", USER_DIR, "--save-dir", folder, "--cpu", "--num-workers", 0),
        *("--optimizer", "adam", "--lr", 0.001, "--max-tokens", 500, "--max-update", 3, *flags),
    )
    return folder / "checkpoint_last.pt", result.stdout + result.stderr


def assert_same(sparse, stock, sample):
    """Check that two models have the same outputs and gradients, in the mode that they are in."""
    results = []
    for model in (sparse, stock):
        model.zero_grad()
        torch.manual_seed(5)  # with the same draws, dropout and layer drop agree too
        output = model(**sample["net_input"])
        if model.decoder.adaptive_softmax is None:
            log_probs = model.get_normalized_probs(output, log_probs=True)
            log_probs.sum().backward()
        else:  # its log-probabilities have no gradient
            log_probs = model.get_normalized_probs(output, log_probs=True, sample=sample).detach()
            output[0].sum().backward()
        results.append((output[0], log_probs, [x.grad for x in model.parameters()]))
    for ours, theirs in zip(results[0][:2], results[1][:2], strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(results[0][2], results[1][2], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)
