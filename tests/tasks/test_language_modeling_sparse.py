"""``--task language_modeling_sparse``: training, measures, and fairseq's commands."""

import json
import math
import random
import re

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.logging import metrics
from fairseq.tasks.language_modeling import LanguageModelingConfig
from fairseq_cli.eval_lm import eval_lm

import toy
from commands import logged, output_flags
from fairseq_sparse.generation.search_report import SearchReport
from fairseq_sparse.models.transformer_lm_sparse import TransformerLMSparseModel
from fairseq_sparse.modules.lm_measures import DEFAULT_EPSILON, lm_measures
from fairseq_sparse.tasks import LanguageModelingSparseConfig, LanguageModelingSparseTask
from fairseq_sparse.tasks.lm_evaluation import LMEvaluation

SIZES = [
    f"--{name.replace('_', '-')}={value}"
    for name, value in toy.SMALL_LM.items()
    if name != "tokens_per_sample"
]
TASK = ("--task", "language_modeling_sparse", "--tokens-per-sample", 12)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Binarise a random text for language models. Few words can follow a word, but the test set
    has some others too."""
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
    model = (*TASK, "--arch", "transformer_lm_sparse", *SIZES, *output_flags(transform))
    logs = ("--log-format=json", "--no-epoch-checkpoints")
    intervals = ("--validate-interval", 5, "--save-interval", 5)
    return toy.train(
        folder, text, *model, *logs, *intervals, "--lr", 0.02, "--max-update", 60, *flags
    )


def test_it_trains_with_smoothing_towards_the_unigrams(text, tmp_path):
    smoothing = ("--label-smoothing", 0.1, "--label-smoothing-prior", "unigram")
    _, output = train(tmp_path, text, "entmax15", *smoothing, "--max-update", 1)
    assert logged(output, "valid")


@pytest.fixture(scope="module")
def checkpoints(text, tmp_path_factory):
    """Train a language model for each output; return its checkpoint and log."""
    found = {}
    for transform, flags in {
        "softmax": ("--max-update", 3),
        "entmax15": ("--best-checkpoint-metric", "ppl"),
        "alpha_relu": ("--output-tau", "weights"),
    }.items():
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
    measures = {name: value.mean() for name, value in lm_measures(p, target, epsilon).items()}
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


@pytest.mark.slow_except("entmax15-eos")
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
    """Logged values are sums, so the parts of a batch give the measures of the whole."""
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


@pytest.mark.slow
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


def evaluate(text, checkpoint, *flags, check=True):
    """Return fairseq-eval-lm's log of the test set and, if *check*, loss (nats) and measures."""
    result = toy.run(
        "fairseq_cli.eval_lm",
        *(text, "--user-dir", toy.USER_DIR, "--path", checkpoint, "--cpu", *TASK),
        *("--gen-subset", "test", "--max-tokens", 60, *flags),
        check=check,
    )
    log = result.stdout + result.stderr
    loss = re.search(r"Loss \(base 2\): ([\d.]+)", log)
    measures = re.search(r"measures \| (\{.*\})", log)
    if not check:
        return log
    return log, float(loss[1]) * math.log(2), json.loads(measures[1])


@pytest.mark.slow_except("entmax15-flags0")
@pytest.mark.parametrize(
    ("transform", "flags"),
    [("entmax15", ["--softmax-batch", "7"]), ("alpha_relu", []), ("softmax", [])],
)
def test_eval_lm_counts_every_token(transform, flags, text, checkpoints):
    path, _ = checkpoints[transform]
    log, loss, measures = evaluate(text, path, "--perplexity-epsilon", 0.001, *flags)
    expected = naive(path, text, 0.001)
    for name in ("tokens", "gold_zero", "nonzeros", "sparsemax_score", "js_divergence", "eps_ppl"):
        assert measures[name] == pytest.approx(float(expected[name]), rel=1e-5)
    assert f"Evaluated {expected['tokens']} tokens" in log and "inf scores" not in log
    printed = expected["ppl" if transform == "softmax" else "eps_ppl"]
    assert loss == pytest.approx(float(printed.log()), abs=1e-4)
    assert ("those of all tokens, with eps = 0.001" in log) == (transform != "softmax")
    if transform != "softmax":
        best = naive(path, text, measures["best_eps"])["eps_ppl"]
        assert measures["best_eps_ppl"] == pytest.approx(float(best), rel=1e-5)
        assert measures["best_eps_ppl"] < measures["eps_ppl"]


def test_eval_lm_sees_the_context_window_and_counts_each_token_once(text, checkpoints):
    path, _ = checkpoints["entmax15"]
    _, loss, measures = evaluate(text, path, "--context-window", 5)
    models, _, task = load_model_ensemble_and_task([str(path)], {"data": str(text)})
    task.args.tokens_per_sample = 7
    task.load_dataset("test")
    items = [task.dataset("test")[index] for index in range(len(task.dataset("test")))]
    source = torch.cat([item["source"] for item in items])
    target = torch.cat([item["target"] for item in items])
    total = 0.0
    for start in range(0, len(target), 7):
        begin, end = max(0, start - 5), min(start + 7, len(target))
        with torch.no_grad():
            output = models[0].eval()(source[None, begin:end])
        p = models[0].get_normalized_probs(output, log_probs=False)[0, start - begin :]
        total += lm_measures(p, target[start:end], DEFAULT_EPSILON)["eps_nll"].sum()
    assert measures["tokens"] == len(target)
    assert loss == pytest.approx(total.item() / len(target), abs=1e-4)


def test_eval_lm_does_not_count_the_bos_that_begins_a_block(text, checkpoints):
    options = {"data": str(text), "add_bos_token": True}
    models, _, task = load_model_ensemble_and_task([str(checkpoints["entmax15"][0])], options)
    task.load_dataset("test")
    batches = task.eval_lm_dataloader(task.dataset("test"), max_positions=13)
    result = eval_lm(
        [model.eval() for model in models], task.dictionary, batches, remove_bos_token=True
    )
    measures = batches.evaluation.summary()
    lines = (text.parent / "test").read_text().splitlines()
    assert measures["tokens"] == sum(len(line.split()) + 1 for line in lines)
    assert result["loss"] == pytest.approx(math.log2(measures["eps_ppl"]), abs=1e-4)


@pytest.mark.slow_except("flags1")
@pytest.mark.parametrize(
    "flags", [("--tokens-per-sample", 13), ("--tokens-per-sample", 14, "--context-window", 4)]
)
def test_blocks_that_eval_lm_would_leave_out_are_refused(flags, text, checkpoints):
    log = evaluate(text, checkpoints["entmax15"][0], *flags, check=False)
    assert "positions of the model: give --tokens-per-sample 12" in log
    assert "Evaluated" not in log


@pytest.mark.slow
def test_adaptive_softmax_is_measured_as_well(text, tmp_path):
    flags = ("--arch", "transformer_lm_sparse", "--criterion", "adaptive_loss")
    flags += ("--adaptive-softmax-cutoff", "8,15", "--ddp-backend", "legacy_ddp")
    path, _ = toy.train(tmp_path, text, *TASK, *SIZES, *flags)
    _, loss, measures = evaluate(text, path)
    assert math.log(measures["eps_ppl"]) == pytest.approx(loss, abs=1e-3)
    assert measures["gold_zero"] == 0 and measures["nonzeros"] > 25


def generated(command, text, checkpoint, *flags, prompts=None):
    """Return the prompts, and the texts of each n-best list."""
    arguments = (text, "--user-dir", toy.USER_DIR, "--path", checkpoint, "--cpu", *TASK, *flags)
    result = toy.run(f"fairseq_cli.{command}", *arguments, input=prompts)
    sources, found = {}, {}
    for kind, number, rest in re.findall(r"^([SHP])-(\d+)\t(.*)$", result.stdout, re.MULTILINE):
        if kind == "S":
            sources[int(number)] = rest
        elif kind == "H":
            found.setdefault(int(number), []).append(rest.split("\t")[1])
    return sources, found


def starts_with(sample, words):
    return sample.split()[: len(words)] == words


SAMPLE = ("--sampling", "--beam", 3, "--nbest", 3, "--max-len-b", 11)


@pytest.mark.slow_except("alpha_relu")
@pytest.mark.parametrize("transform", ["entmax15", "alpha_relu"])
def test_fairseq_interactive_continues_prompts_and_follows_the_seed(transform, text, checkpoints):
    path, _ = checkpoints[transform]
    prompts = "W1 W3\nW20 W19 W0\n\nW7 W2 W4 W12\n"  # few are possible
    runs = [
        generated("interactive", text, path, *SAMPLE, "--seed", seed, prompts=prompts)[1]
        for seed in (4, 4, 5)
    ]
    assert runs[0] == runs[1] != runs[2]
    for number, prompt in enumerate(prompts.splitlines()):
        assert len(runs[0][number]) == 3
        assert all(starts_with(sample, prompt.split()) for sample in runs[0][number])


def test_fairseq_generate_continues_the_beginnings_of_a_test_set(text, checkpoints):
    path, _ = checkpoints["entmax15"]
    flags = ("--sample-break-mode", "eos", "--gen-subset", "test", "--prefix-size", 3)
    _, found = generated("generate", text, path, *flags, *SAMPLE, "--sampling-minp", 0.1)
    lines = (text.parent / "test").read_text().splitlines()
    assert len(found) == len(lines)
    for number, line in enumerate(lines):
        assert all(starts_with(sample, line.split()[:3]) for sample in found[number])
        assert not any("<unk>" in sample for sample in found[number])


@pytest.mark.parametrize("transform", ["softmax", "alpha_relu"])
def test_the_hub_interface_samples_and_scores(transform, text, checkpoints):
    path, _ = checkpoints[transform]
    hub = TransformerLMSparseModel.from_pretrained(str(path.parent), path.name, str(text))
    torch.manual_seed(1)
    (sample,) = hub.sample(["W1 W3"], beam=1, sampling=True, max_len_b=8)
    assert sample.startswith("W1 W3")
    line = "W1 W3 W9 W2 W0"
    (scored,) = hub.score([line])
    tokens = hub.encode(line)[:-1]
    assert torch.equal(scored["tokens"], tokens)
    source = torch.cat([torch.tensor([hub.src_dict.eos()]), tokens[:-1]])
    with torch.no_grad():
        p = hub.models[0].get_normalized_probs(hub.models[0](source[None]), log_probs=False)[0]
    expected = (p / p.sum(-1, keepdim=True)).gather(1, tokens[:, None]).squeeze(1).log()
    torch.testing.assert_close(scored["positional_scores"], expected, rtol=1e-4, atol=1e-5)


def test_python_can_ask_for_each_kind_of_sampling(text, checkpoints):
    path, _ = checkpoints["entmax15"]
    hub = TransformerLMSparseModel.from_pretrained(str(path.parent), path.name, str(text))

    def sample(seed, **options):
        torch.manual_seed(seed)
        return hub.sample(["W1 W3"], beam=1, sampling=True, max_len_b=8, **options)[0]

    assert len({sample(seed) for seed in range(5)}) > 1
    assert len({sample(seed, sampling_topk=10_000) for seed in range(5)}) > 1
    (greedy,) = hub.translate(["W1 W3"], beam=1, max_len_b=8)
    for name in ("sampling_minp", "sampling_epsilon"):
        assert {sample(seed, **{name: 1.0}) for seed in range(5)} == {greedy}
        with pytest.raises(ValueError, match=name.replace("_", "-")):
            sample(1, **{name: 7.0})


def test_an_ensemble_is_refused_by_eval_lm():
    """Its scorer averages probabilities, for which no measures are computed."""
    model = toy.language_model(output_transform="entmax15").eval()
    tokens = torch.tensor([[5, 6, 7]])
    sample = {"target": tokens, "evaluation": LMEvaluation(1e-6, [])}
    with torch.no_grad():
        output = model(tokens)
    assert model.get_normalized_probs(output, True, sample).isfinite().all()
    with pytest.raises(ValueError, match="measures one model: give one checkpoint in --path"):
        model.get_normalized_probs(output, False, sample)


def test_a_model_without_measures_is_named(caplog):
    LMEvaluation(1e-6, []).report()
    assert "no measures: the model is not of this package" in caplog.text


def test_texts_that_are_cut_off_are_all_counted(caplog):
    caplog.set_level("INFO")
    report = SearchReport(continues_prompts=True)
    cut, whole = {"incomplete": True, "exact": None}, {"exact": None}
    report.add([0, 1], [[whole, cut, cut], [whole, cut, whole]])
    report.finish()
    assert "3 of 6 texts are cut off" in caplog.text
