"""``--task language_modeling_sparse``: training, validation and their measures."""

import math
import random
import re

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.logging import metrics
from fairseq.tasks.language_modeling import LanguageModelingConfig

import toy
from commands import logged, output_flags
from fairseq_sparse.modules.text_measures import DEFAULT_EPSILON, text_measures
from fairseq_sparse.tasks import LanguageModelingSparseConfig, LanguageModelingSparseTask

SIZES = [
    f"--{name.replace('_', '-')}={value}"
    for name, value in toy.SMALL_LM.items()
    if name != "tokens_per_sample"
]
TASK = ("--task", "language_modeling_sparse", "--tokens-per-sample", 12)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A random text, binarised for language models. A word is followed by one of a few, and in the
    test set also by others."""
    folder = tmp_path_factory.mktemp("lm")
    rng = random.Random(3)
    prefixes = []
    for split, lines in (("train", 400), ("valid", 40), ("test", 37)):
        with open(folder / split, "w") as file:
            for _ in range(lines):
                words = [rng.randrange(25)]
                for _ in range(rng.randint(1, 5)):
                    choices = [0, 0, 0, 1, 7] if split != "test" else [0, 1, 7, 12, 13]
                    words.append((3 * words[-1] + rng.choice(choices)) % 25)
                file.write(" ".join(f"W{word}" for word in words) + "\n")
        prefixes.append(f"--{split}pref={folder / split}")
    toy.run("fairseq_cli.preprocess", "--only-source", *prefixes, "--destdir", folder / "bin")
    return folder / "bin"


def train(folder, text, transform, *flags):
    flags = (*TASK, "--arch", "transformer_lm_sparse", *SIZES, *output_flags(transform), *flags)
    flags += ("--lr", 0.02, "--max-update", 60, "--log-format=json", "--no-epoch-checkpoints")
    return toy.train(folder, text, *flags, "--validate-interval", 5, "--save-interval", 5)


@pytest.fixture(scope="module")
def checkpoints(text, tmp_path_factory):
    """A trained language model of each output, and the log of its training."""
    found = {}
    for transform in ("softmax", "entmax15", "alpha_relu"):
        flags = ("--best-checkpoint-metric", "ppl") if transform == "entmax15" else ()
        if transform == "alpha_relu":
            flags = ("--output-tau", "weights")
        found[transform] = train(tmp_path_factory.mktemp(transform), text, transform, *flags)
    return found


def naive(checkpoint, text, epsilon=DEFAULT_EPSILON, **overrides):
    """The measures of the test set from full distributions, batch by batch of one block."""
    options = {"data": str(text), **overrides}
    models, _, task = load_model_ensemble_and_task([str(checkpoint)], options)
    task.load_dataset("test")
    dataset, model = task.dataset("test"), models[0].eval()
    rows, golds = [], []
    for item in dataset:
        sample = dataset.collater([item])
        with torch.no_grad():
            p = model.get_normalized_probs(model(**sample["net_input"]), log_probs=False)[0]
        p = p.double() / p.double().sum(-1, keepdim=True)
        rows.append(p)
        golds.append(sample["target"][0])
    p, target = torch.cat(rows), torch.cat(golds)
    measures = {name: value.mean() for name, value in text_measures(p, target, epsilon).items()}
    gold = p.gather(1, target[:, None])
    return {
        "tokens": len(target),
        "gold_zero": 100 * (gold == 0).double().mean(),
        "nonzeros": (p > 0).double().sum(1).mean(),
        "sparsemax_score": measures["sparsemax_score"],
        "js_divergence": measures["js_divergence"],
        "eps_ppl": measures["eps_nll"].exp(),
        "ppl": (-gold.log().mean()).exp(),
    }


@pytest.mark.parametrize(
    ("transform", "mode"),
    [("entmax15", "none"), ("entmax15", "eos"), ("softmax", "complete"), ("alpha_relu", "none")],
)
def test_validation_measures_every_token(transform, mode, text, checkpoints):
    path, _ = checkpoints[transform]
    result = toy.run(
        "fairseq_cli.validate",
        *(text, "--user-dir", toy.USER_DIR, "--path", path, "--cpu", *TASK),
        *("--sample-break-mode", mode, "--valid-subset", "test", "--max-tokens", 50),
        *("--perplexity-epsilon", "0.001", "--log-format", "json"),
    )
    (record,) = logged(result.stdout + result.stderr, "test")
    expected = naive(path, text, 0.001, sample_break_mode=mode)
    assert expected["tokens"] == sum(
        len(line.split()) + 1 for line in (text.parent / "test").read_text().splitlines()
    )
    if transform != "softmax":
        assert expected["gold_zero"] > 0 and expected["ppl"] == math.inf
        expected["ppl"] = expected["eps_ppl"]
    for name in ("gold_zero", "nonzeros", "sparsemax_score", "js_divergence", "eps_ppl", "ppl"):
        value = float(record[f"test_{name}"])
        assert value == pytest.approx(float(expected[name]), rel=1e-3, abs=0.006)


def test_ppl_chooses_the_checkpoint_of_a_sparse_model(checkpoints):
    _, log = checkpoints["entmax15"]
    values = [float(record["valid_ppl"]) for record in logged(log, "valid")]
    assert len(values) > 1 and all(map(math.isfinite, values))
    assert float(logged(log, "valid")[-1]["valid_best_ppl"]) == min(values)
    for record in (*logged(log, "valid"), *logged(log, "train")):
        assert not any("nll" in name for name in record)


def test_sums_of_two_workers_give_the_measures_of_all_tokens(checkpoints, text):
    """What is logged is a sum, so that the parts of a batch give what the whole gives."""
    path, _ = checkpoints["entmax15"]
    models, cfg, task = load_model_ensemble_and_task([str(path)], {"data": str(text)})
    task.load_dataset("test")
    dataset, criterion = task.dataset("test"), task.build_criterion(cfg.criterion)
    items = [dataset[index] for index in range(len(dataset))]

    def measured(*parts):
        logs = [task.valid_step(dataset.collater(part), models[0], criterion)[2] for part in parts]
        summed = {name: sum(log[name] for log in logs) for name in logs[0]}
        with metrics.aggregate() as meters:
            criterion.reduce_metrics([summed])
        return meters.get_smoothed_values()

    assert measured(items[:5], items[5:]) == pytest.approx(measured(items), rel=1e-5)


def test_stock_models_train_with_stock_criterions(text, tmp_path):
    flags = (*TASK, *SIZES, "--arch", "transformer_lm", "--best-checkpoint-metric", "ppl")
    path, log = toy.train(tmp_path, text, *flags)
    assert path.exists() and re.search(r"valid on 'valid' subset.* ppl", log)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_out_of_range_is_refused(epsilon):
    config = LanguageModelingSparseConfig(perplexity_epsilon=epsilon)
    with pytest.raises(ValueError, match="--perplexity-epsilon"):
        LanguageModelingSparseTask(config, toy.dictionary())


def test_settings_of_the_stock_task_have_the_default_epsilon():
    task = LanguageModelingSparseTask(LanguageModelingConfig(), toy.dictionary())
    assert task.perplexity_epsilon == DEFAULT_EPSILON
