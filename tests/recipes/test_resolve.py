"""From names and options to every setting of a run."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fairseq import options as fairseq_options

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.models.transformer_sparse import TransformerSparseModel
from fairseq_sparse.modules.attention_config import attention_kinds
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.recipes.plan import as_arguments
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve, run_name
from toy import ROOT, USER_DIR, task

DATASETS, VARIANTS = catalogue.entries("datasets"), catalogue.entries("variants")
SETTINGS = ["", *catalogue.entries("settings")]


def recipe(dataset: str = "multi30k_de_en", variant: str = "softmax", **options: Any) -> Recipe:
    return resolve(dataset, variant, Options(**options))


def parsed(found: Recipe):
    """Return the flags of fairseq-train as it reads them."""
    parser = fairseq_options.get_training_parser()
    flags = as_arguments({**found.task, **found.training.flags, **found.model.flags})
    return fairseq_options.parse_args_and_arch(parser, ["data", "--user-dir", USER_DIR, *flags])


def is_for(settings: str, dataset: str) -> bool:
    """Return whether a paper's settings are for the architecture of a data set."""
    arch = recipe(dataset).training.flags["arch"]
    return not settings or arch.startswith(catalogue.find("settings", settings)["architecture"])


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_entry_gives_a_whole_recipe(dataset: str) -> None:
    for config, settings, variant in itertools.product(("cpu", "gpu"), SETTINGS, VARIANTS):
        chosen = {"config": config, "settings": settings}
        if not is_for(settings, dataset):
            with pytest.raises(RecipeError, match=f"{settings}.*{dataset}"):
                recipe(dataset, variant, **chosen)
            continue
        found = recipe(dataset, variant, **chosen)
        text = json.dumps(found.as_json())
        assert not re.search(r"\{(source|target|lang|other|side|tokenizer|name)\}", text)
        again = json.loads(text)
        assert again["training"]["flags"] == found.training.flags
        assert (again["config"], again["settings"], again["variant"]) == (config, settings, variant)
        assert not found.training.flags.keys() & found.model.flags.keys()
        assert False not in [x for x in found.training.flags.values() if isinstance(x, bool)]
        assert found.data_dir.is_absolute() and found.run_dir.is_absolute()
        assert found.training.device_batch <= found.training.batch
        corpus = found.corpus
        if corpus.kind != "inflection":
            splits = {"train", "valid", "test"} - ({"valid"} if corpus.hold_out else set())
            held_out = {"valid", "test"} if corpus.kind == "text" and corpus.hold_out else set()
            held_out |= {"valid", "test"} if corpus.test_groups else set()
            assert {take.split for take in corpus.take} == splits - held_out
            names = {name for take in corpus.take for name in take.files}
            assert corpus.made_by or {file.name for file in corpus.files} == names


@pytest.mark.each_value
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("config", ["cpu", "gpu"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_fairseq_understands_the_flags(dataset: str, config: str, settings: str) -> None:
    found = recipe(dataset, config=config, settings=settings if is_for(settings, dataset) else "")
    args = parsed(found)
    parser = fairseq_options.get_generation_parser()
    flags = as_arguments({**found.task, **found.decoding.flags})
    own = ["data", "--user-dir", USER_DIR, "--path", "x.pt", *flags]
    fairseq_options.parse_args_and_arch(parser, own)
    if found.corpus.kind == "parallel" and "lstm" not in args.arch:
        shared = args.share_all_embeddings
        assert found.corpus.joined_dictionary or not shared
        assert args.fp16 == (config == "gpu" and dataset != "quickstart")
    if found.training.checkpoints == "best":
        assert args.keep_interval_updates == 1 or not args.save_interval_updates


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("variant", [*VARIANTS, "alpha_relu+rela_g"])
def test_a_variant_gives_a_model(variant: str, settings: str) -> None:
    found = recipe(variant=variant, settings=settings)
    args = parsed(found)
    model = TransformerSparseModel.build_model(args, task())
    transform = model.decoder.output_projection.transform
    assert transform.name == found.model.output
    assert transform.alpha == found.model.output_alpha
    assert args.label_smoothing == (0.1 if settings == "rela" else 0)
    assert (found.model.attention, found.variant) == (args.attention, variant.split("+")[0])


KINDS = ("", "sparsemax", "entmax15", "relu", "relu_rmsnorm", "rela_i", "rela_g")


@pytest.mark.parametrize("kind", KINDS)
def test_an_attention_changes_nothing_else(kind: str) -> None:
    variant = f"softmax+{kind}" if kind else "softmax"
    args, baseline = parsed(recipe(variant=variant)), parsed(recipe())
    assert tuple(attention_kinds(args).values()) == (kind or "softmax",) * 3
    different = {name for name, value in vars(args).items() if getattr(baseline, name) != value}
    assert different <= {"attention"}
    assert recipe(attention=kind) == recipe(variant=variant)


def test_an_attention_can_be_of_one_place() -> None:
    found = recipe(attention_cross="rela_g")
    assert tuple(attention_kinds(parsed(found)).values()) == ("softmax", "softmax", "rela_g")
    assert (found.model.attention, found.model.attention_cross) == ("softmax", "rela_g")
    assert (found.model.attention_enc, found.model.attention_dec) == ("", "")


def test_entmax_in_one_place_has_its_alpha() -> None:
    assert recipe(attention_cross="entmax", attention_alpha=1.2).model.attention_alpha == 1.2
    assert recipe(attention_cross="entmax").model.attention_alpha == 1.5


@pytest.mark.parametrize("output", [1.0, 1.33, 1.5, 2.0])
@pytest.mark.parametrize("attention", [1.0, 1.2, 1.5, 2.0])
def test_entmax_has_any_alpha_and_named_kinds_take_none(output: float, attention: float) -> None:
    found = recipe(variant="entmax", output_alpha=output, attention_alpha=attention)
    named = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}
    model = found.model
    assert (model.output_alpha, model.attention_alpha) == (output, attention)
    assert model.output == named.get(output, "entmax")
    assert model.attention == named.get(attention, "entmax")
    assert ("output-alpha" in model.flags) == (output not in named)
    assert ("attention-alpha" in model.flags) == (attention not in named)
    assert found.label == f"entmax: output {output:g}, attention {attention:g}"


WRONG_OVERRIDES = "corpus.max_token=1 corpus.max_tokens=many corpus.long_test=yes".split()
WRONG_OVERRIDES += "corpus.take=train corpus.tokens=de:no decode.beam=1 max-tokens=1 seed=2".split()
WRONG_OVERRIDES += "corpus.source=fr corpus.kind=text save-dir=/x no-save=true max-epoch=3".split()
WRONG_OVERRIDES += "keep-last-epochs=1 generate.path=x.pt generate.gen-subset=valid".split()


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("softmax", {"output_tau": "0.3"}),
        ("entmax15", {"output_alpha": 1.3}),
        ("alpha_relu", {"output_algorithm": "sort"}),
        ("entmax", {"output_alpha": 0.5}),
        ("entmax", {"attention_alpha": float("nan")}),
        ("softmax+rela_g", {"attention_alpha": 1.3}),
        ("softmax+rela_g", {"attention": "rela_i"}),
        ("softmax+rela", {}),
        ("softmax", {"attention_enc": "rela"}),
        ("softmaxx", {}),
        ("softmax", {"settings": "su"}),
        ("softmax", {"config": "tpu"}),
        ("softmax", {"languages": ("de",)}),
        *(("softmax", {"overrides": dict([text.split("=")])}) for text in WRONG_OVERRIDES),
    ],
)
def test_options_that_do_not_fit_are_refused(variant: str, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        recipe(variant=variant, **options)


def test_the_table_wins_over_settings_and_settings_over_the_data_set() -> None:
    own, sue = recipe(), recipe(settings="sue")
    sizes = {"epochs": 7, "updates": 9, "batch": 300, "device_batch": 200}
    mine = recipe(settings="sue", bpe_merges=30, label_smoothing=0.2, seed=5, **sizes)
    assert own.training.batch != sue.training.batch == 32_768 and mine.training.batch == 300
    # A sentence may be longer than a batch of training.
    assert (mine.training.device_batch, mine.decoding.max_tokens) == (200, 1024)
    assert (mine.training.flags["max-epoch"], mine.training.flags["max-update"]) == (7, 9)
    assert (mine.corpus.bpe_merges, mine.seed, recipe(average=2).training.average) == (30, 5, 2)
    assert sue.model.flags["label-smoothing"] == 0 and mine.model.flags["label-smoothing"] == 0.2
    assert "share-all-embeddings" in own.training.flags
    assert "share-all-embeddings" not in sue.training.flags


def test_choices_in_a_place_are_lines_of_their_own() -> None:
    takes = [take for take in recipe("wmt18_zh_en").corpus.take if "Book" in take.source]
    numbers = [int(re.fullmatch(r"cwmt.*/Book(\d+)_cn.txt", take.source)[1]) for take in takes]
    assert numbers == list(range(1, 21))
    assert [take.source.replace("_cn", "_en") for take in takes] == [x.target for x in takes]


def test_overrides_win_over_all() -> None:
    text = "lr=7 share-all-embeddings=false reset-meters=true output-tau=0.5 "
    text += "tokens-per-sample=64 generate.beam=9 generate.lenpen=false corpus.max_tokens=12 "
    text += "corpus.max_ratio=1.5 corpus.long_test=true corpus.remove_diacritics=de,en "
    text += "corpus.tokens=de:space"
    overrides = dict(word.split("=") for word in text.split())
    chosen = {"epochs": 5, "output_tau": "0.1", "settings": "sue", "overrides": overrides}
    found = recipe(variant="alpha_relu", **chosen)
    flags, corpus = found.training.flags, found.corpus
    assert (flags["lr"], flags["max-epoch"], flags["reset-meters"]) == ("7", 5, True)
    assert "share-all-embeddings" not in flags
    assert found.model.output_tau == found.model.flags["output-tau"] == "0.5"
    assert found.decoding.flags == {"beam": "9", "max-tokens": 8000}
    assert (corpus.max_tokens, corpus.max_ratio, corpus.long_test) == (12, 1.5, True)
    assert corpus.remove_diacritics == ("de", "en")
    assert corpus.tokens == {"de": "space", "en": "moses"}
    own_task = recipe("multi30k_en", overrides={"tokens-per-sample": "64"})
    assert own_task.task["tokens-per-sample"] == "64"
    assert "tokens-per-sample" not in own_task.training.flags


@pytest.mark.parametrize(
    ("settings", "tau"), [("", "weights"), ("sue", "data"), ("rela", "weights")]
)
def test_tau_is_that_of_the_weights_and_in_sue_that_of_the_first_batch(settings, tau) -> None:
    assert recipe(variant="alpha_relu", settings=settings).model.output_tau == tau
    assert recipe(variant="alpha_relu", settings=settings, output_tau="1").model.output_tau == "1"


SIDES = {"source": "de", "target": "en"}


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ({"base": "small_corpus"}, "corpus.source"),
        ({"base": "small_corpus", "corpus": {"source": "de"}}, "corpus.target"),
        ({"base": "own", "corpus": {**SIDES, "sorce": "de"}}, "corpus.sorce"),
        ({"base": "own", "trainin": {}}, "trainin"),
        ({"base": "own", "corpus": SIDES, "gpu": {"training": {"unit": "token"}}}, "training.unit"),
        ({"base": "own", "corpus": {**SIDES, "files": "multi31k"}}, "multi31k"),
        ({"base": "onw"}, "onw"),
    ],
)
def test_a_wrong_entry_is_named_with_what_is_wrong(entry: dict[str, Any], part: str) -> None:
    with pytest.raises(RecipeError, match=f"mine.*{re.escape(part)}"):
        resolve("mine", "softmax", Options(config="gpu"), entry)


def test_settings_of_single_data_sets_are_of_data_sets_that_there_are() -> None:
    for settings in catalogue.entries("settings").values():
        assert settings.get("for", {}).keys() <= DATASETS.keys()


def test_different_models_have_different_labels_and_folders() -> None:
    models = [
        ("softmax", {}),
        ("softmax+rela_g", {}),
        ("entmax15", {"attention": "rela_g"}),
        ("entmax15", {"attention_enc": "rela_g"}),
        ("entmax15", {"attention_cross": "rela_g"}),
        ("entmax15", {"output_algorithm": "sort"}),
        ("entmax15+entmax15", {}),
        ("entmax15+entmax15", {"overrides": {"attention-scale-queries": "true"}}),
        ("entmax", {}),
        ("entmax", {"output_alpha": 1.33, "attention_alpha": 1.5}),
        ("entmax", {"output_alpha": 1.5, "attention_alpha": 1.33}),
        ("entmax+rela_g", {"output_alpha": 1.33}),
        ("alpha_relu", {}),
        ("alpha_relu", {"output_tau": "0.3"}),
        ("alpha_relu", {"output_alpha": 2.0}),
    ]
    found = [recipe(variant=variant, **options) for variant, options in models]
    assert len({one.label or one.variant for one in found}) == len(models)
    names = {
        run_name(variant, Options(**options, settings=settings, config=config, seed=seed))
        for variant, options in models
        for settings, config, seed in itertools.product(SETTINGS, ("cpu", "gpu"), (1, 2))
    }
    assert len(names) == len(models) * len(SETTINGS) * 4
    assert all(re.fullmatch(r"[\w.+-]+", name) for name in names)
    assert found[0].run_dir == Path.cwd() / "runs" / "multi30k_de_en" / "softmax-cpu"
    # What changes neither model nor settings stays in the folder, and is refused there.
    assert recipe(epochs=1, overrides={"lr": "1"}).run_dir == found[0].run_dir


def test_readable_labels() -> None:
    assert recipe(variant="entmax15+rela_g").label == "entmax15, rela_g attention"
    assert recipe(variant="alpha_relu", output_tau="0.3").label == "alpha_relu, τ = 0.3"
    assert recipe(variant="entmax15", output_algorithm="sort").label == "entmax15, by sort"
    assert recipe(attention_dec="rela_g").label == "softmax, rela_g decoder self-attention"


def test_inflection_takes_the_files_of_its_setting_and_languages() -> None:
    whole = recipe("sigmorphon2018_medium")
    assert len(whole.corpus.files) == 1 and whole.corpus.language_count == 102
    part = recipe("sigmorphon2018_medium_part").corpus
    assert len(part.files) == 30 and part.language_count == 0
    chosen = recipe("sigmorphon2018_high_part", languages=("latin", "turkish")).corpus
    assert chosen.languages == ("latin", "turkish")
    assert [file.name for file in chosen.files] == [
        f"all/{language}-{split}"
        for language in ("latin", "turkish")
        for split in ("train-high", "dev", "test")
    ]
    with pytest.raises(RecipeError, match="sigmorphon2018_medium_part"):
        recipe("sigmorphon2018_medium", languages=("latin",))
    with pytest.raises(RecipeError, match="latin"):
        recipe("sigmorphon2018_medium_part", languages=("latine",))


def test_a_short_training_is_validated_at_its_end() -> None:
    def every(epochs: int) -> int:
        return recipe("sigmorphon2018_medium", epochs=epochs).training.flags["validate-interval"]

    assert (every(3), every(10), every(60)) == (3, 10, 10)


def test_resolving_loads_neither_torch_nor_fairseq() -> None:
    """So that the second start of a finished run is quick."""
    script = """
import sys
from fairseq_sparse.recipes.recipe import Options
from fairseq_sparse.recipes.resolve import resolve
resolve("quickstart", "entmax15+rela_g", Options(settings="sue"))
assert not {"torch", "fairseq"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
