"""The stages of recipes: what is run, and what makes it run again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.measure.cache import measurement_file
from fairseq_sparse.recipes import catalogue, training
from fairseq_sparse.recipes.launch import Launch
from fairseq_sparse.recipes.plan import Command, Stage
from fairseq_sparse.recipes.recipe import Decoding, Options, Recipe
from fairseq_sparse.recipes.resolve import resolve
from fairseq_sparse.recipes.script import as_script
from fairseq_sparse.recipes.stages import plan


def stages_of(recipe: Recipe, devices: int = 1, launch: Launch | None = None) -> dict[str, Stage]:
    made = plan(recipe, launch or Launch(workers=devices))
    return {stage.name: stage for stage in made.stages}


def command_of(stage: Stage, program: str) -> Command:
    """Return the only command of a stage that has the word."""
    (found,) = (command for command in stage.commands if program in command.argv)
    return found


def value_of(command: Command, flag: str) -> Any:
    return command.argv[command.argv.index(flag) + 1]


def train(recipe: Recipe, *arguments: Any) -> Command:
    (command,) = stages_of(recipe, *arguments)["train"].commands
    return command


def with_training(recipe: Recipe, **fields: Any) -> Recipe:
    return replace(recipe, training=replace(recipe.training, **fields))


def with_corpus(recipe: Recipe, **fields: Any) -> Recipe:
    return replace(recipe, corpus=replace(recipe.corpus, **fields))


@pytest.mark.parametrize("devices", [1, 2, 3, 7])
@pytest.mark.parametrize("unit", ["tokens", "sentences"])
def test_an_update_has_the_same_batch_on_any_number_of_devices(
    devices: int, unit: str, recipe: Recipe
) -> None:
    recipe = with_training(recipe, unit=unit, batch=840, device_batch=100)
    command = train(recipe, devices)
    flag = {"tokens": "--max-tokens", "sentences": "--batch-size"}[unit]
    share, frequency = int(value_of(command, flag)), int(value_of(command, "--update-freq"))
    assert share <= 100 and 840 - devices * frequency < share * frequency * devices <= 840
    assert value_of(command, "--distributed-world-size") == str(devices)
    assert stages_of(recipe, devices)["train"].settings == stages_of(recipe)["train"].settings


def test_a_long_sentence_for_validation_fits(recipe: Recipe) -> None:
    """fairseq leaves out long sentences for training only."""
    small = with_training(recipe, batch=512, device_batch=256)
    assert value_of(train(small), "--max-tokens-valid") == "1024"
    large = with_training(recipe, batch=4096, device_batch=4096)
    assert "--max-tokens-valid" not in train(large).argv
    own = {**recipe.training.flags, "max-target-positions": 2000}
    assert (
        value_of(train(with_training(large, flags=own, device_batch=1500)), "--max-tokens-valid")
        == "2000"
    )
    given = {**recipe.training.flags, "max-tokens-valid": 300}
    assert train(with_training(small, flags=given)).argv.count("--max-tokens-valid") == 1


@pytest.mark.parametrize("name", ["dict.txt", "dict.en.txt"])
def test_a_model_of_other_dictionaries_is_not_fine_tuned(
    name: str, recipe: Recipe, tmp_path: Path
) -> None:
    recipe.binary.mkdir(parents=True)
    (recipe.binary / name).write_text("the 1\n")
    model = tmp_path / "base" / "average.pt"
    record = {"inputs": {name: {"sha256": "another"}}}
    (model.parent / "stages").mkdir(parents=True)
    (model.parent / "stages" / "train.json").write_text(json.dumps(record))
    with pytest.raises(RecipeError, match=name):
        training._check_dictionaries(recipe, model)


def test_a_batch_that_is_too_small_for_the_devices_is_refused(recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match="5 devices"):
        plan(with_training(recipe, batch=4), Launch(workers=5))


def test_workers_on_one_machine_and_on_several(recipe: Recipe) -> None:
    assert train(recipe).argv[0] == "fairseq-train"
    alone = train(recipe, 2)
    assert alone.argv[0] == "torchrun" and "--standalone" in alone.argv
    assert value_of(alone, "--distributed-backend") == "gloo"
    launch = Launch(machines=3, machine=1, workers=2, address="host", port=123)
    together = train(recipe, 2, launch)
    for flag, value in {"--nnodes": 3, "--node-rank": 1, "--nproc-per-node": 2}.items():
        assert value_of(together, flag) == str(value)
    assert value_of(together, "--master-addr") == "host"
    assert value_of(together, "--distributed-world-size") == "6"
    assert "gloo" not in train(replace(recipe, config="gpu"), 2).argv


# What is changed, and the stages that must then run again; those of later stages follow from their
# inputs.
CHANGES: dict[str, tuple[Callable[[Recipe], Recipe], set[str]]] = {
    "folders": (
        lambda x: replace(x, data_dir=Path("/a"), run_dir=Path("/b"), label="name", note="note"),
        set(),
    ),
    "log interval": (
        lambda x: with_training(x, flags={**x.training.flags, "log-interval": 7}),
        set(),
    ),
    "a number as text": (
        lambda x: with_training(x, flags={**x.training.flags, "lr": "0.01"}),
        set(),
    ),
    "memory of a device": (lambda x: with_training(x, device_batch=64), set()),
    "dropout": (lambda x: with_training(x, flags={**x.training.flags, "dropout": 0.5}), {"train"}),
    "a flag less": (
        lambda x: with_training(x, flags={**x.training.flags, "share-all-embeddings": False}),
        {"train"},
    ),
    "seed": (lambda x: replace(x, seed=2), {"train"}),
    "batch": (lambda x: with_training(x, batch=600), {"train"}),
    "output": (lambda x: replace(x, model=replace(x.model, flags={"criterion": "y"})), {"train"}),
    "merges": (lambda x: with_corpus(x, bpe_merges=50), {"prepare"}),
    "another file": (
        lambda x: with_corpus(x, files=(replace(x.corpus.files[0], checksum="1" * 64),)),
        {"prepare"},
    ),
    "average": (lambda x: with_training(x, average=1), {"average"}),
    "exponential average": (lambda x: with_training(x, exponential=True), {"average"}),
    "beam": (lambda x: replace(x, decoding=Decoding({"beam": 4, "max-len-b": 20})), {"generate"}),
    "score": (
        lambda x: replace(x, decoding=replace(x.decoding, score_flags={"tokenize": "none"})),
        {"generate"},
    ),
    "validation": (
        lambda x: replace(x, decoding=replace(x.decoding, validation=True)),
        {"analyze"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_runs_again(change: str, recipe: Recipe) -> None:
    changed, expected = CHANGES[change]
    before, after = stages_of(recipe), stages_of(changed(recipe))
    differing = {name for name in before if before[name].settings != after[name].settings}
    assert differing == expected
    json.dumps([stage.settings for stage in after.values()])


def test_the_last_stage_makes_what_the_report_reads(recipe: Recipe) -> None:
    stage = stages_of(recipe)["analyze"]
    for name, command in (("output", "support"), ("attention", "attention")):
        file = measurement_file(recipe.run_dir / "average.pt", name, "test")
        (made,) = [each for each in stage.commands if each.outputs == (file,)]
        assert file in stage.outputs and made.argv[:3] == ("fairseq-sparse", "analyze", command)


def test_gold_links_are_inputs_and_the_rates_a_result(recipe: Recipe, tmp_path: Path) -> None:
    plain, gold = (
        stages_of(with_corpus(recipe, gold_alignment=name, gold_words=name and "test.tok"))
        for name in ("", "test.talp")
    )
    rates = recipe.run_dir / "alignment.json"
    assert rates in gold["align"].outputs and rates in gold["analyze"].inputs
    assert rates not in (*plain["align"].outputs, *plain["analyze"].inputs)
    names = {path.name for path in gold["align"].inputs}
    assert {"test.talp", "test.tok.de", "test.tok.en"} <= names


def test_long_sentences_are_a_second_test_set(recipe: Recipe) -> None:
    stages = stages_of(with_corpus(recipe, max_tokens=20, long_test=True))
    names = {path.name for path in stages["generate"].outputs}
    assert {"generate-long.txt", "hyp-long.detok.txt", "bleu-long.json"} <= names
    assert "test1.de-en.de.bin" in {path.name for path in stages["prepare"].outputs}


def test_which_checkpoints_are_kept_and_averaged(recipe: Recipe) -> None:
    for kind, kept, averaged in (
        ("last", "--keep-last-epochs", "--num-epoch-checkpoints"),
        ("updates", "--keep-interval-updates", "--num-update-checkpoints"),
    ):
        stages = stages_of(with_training(recipe, checkpoints=kind))
        (average,) = stages["average"].commands
        assert value_of(stages["train"].commands[0], kept) == value_of(average, averaged) == "2"
    (average,) = stages_of(with_training(recipe, checkpoints="best"))["average"].commands
    assert value_of(average, "--inputs").name == "checkpoint_best.pt"


def test_too_few_epochs_for_the_average_are_refused(recipe: Recipe) -> None:
    def epochs(count: object, **fields: Any) -> Recipe:
        flags = {**recipe.training.flags, "max-epoch": count}
        return with_training(recipe, flags=flags, average=4, **fields)

    for count in (3, "3"):
        with pytest.raises(RecipeError, match="--epochs 3.*--average"):
            plan(epochs(count))
    plan(epochs(0))  # no limit
    plan(epochs(4))
    plan(epochs(3, checkpoints="best"))


def test_too_few_updates_for_the_average_are_refused(recipe: Recipe) -> None:
    def updates(count: object) -> Recipe:
        flags = {**recipe.training.flags, "max-update": count, "save-interval-updates": 10}
        return with_training(recipe, flags=flags, average=4, checkpoints="updates")

    for count in (39, "39"):
        with pytest.raises(RecipeError, match="--updates 39.*--average"):
            plan(updates(count))
    plan(updates(0))  # no limit
    plan(updates(40))


def test_results_of_an_earlier_model_go_before_the_recipe_is_written(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(recipe, run_dir=tmp_path)
    (tmp_path / "summary.json").write_text("{}")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        stages_of(recipe)["average"].before()
    assert not (tmp_path / "summary.json").exists()


def test_a_training_is_prolonged_unless_its_schedule_has_an_end(recipe: Recipe) -> None:
    for schedule, prolonged in (("inverse_sqrt", True), ("cosine", False)):
        flags = {**recipe.training.flags, "lr-scheduler": schedule}
        stage = stages_of(with_training(recipe, flags=flags))["train"]
        assert ("--max-epoch" in stage.prolonged_by) is prolonged


@pytest.mark.parametrize("place", ["data_dir", "run_dir"])
def test_folders_that_fairseq_would_split_are_refused(place: str, recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match="a:b"):
        plan(replace(recipe, **{place: Path("/a:b")}))


def test_raw_files_of_the_user_are_inputs(recipe: Recipe, tmp_path: Path) -> None:
    recipe = replace(recipe, raw_dir=tmp_path)
    with pytest.raises(RecipeError, match="train.de"):
        plan(recipe)
    names = [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("de", "en")]
    for name in [*names[1:], "train.de.gz"]:  # one may be compressed
        (tmp_path / name).touch()
    prepare = stages_of(recipe)["prepare"]
    assert {path.name for path in prepare.inputs} == {*names[1:], "train.de.gz"}
    assert not any("download" in command.argv for command in prepare.commands)


def test_text_that_nobody_has_is_refused(recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match="--raw-dir"):
        plan(with_corpus(recipe, files=()))


@pytest.mark.parametrize("config", ["cpu", "gpu"])
def test_every_data_set_has_a_script_that_bash_can_read(config: str) -> None:
    scripts = [
        as_script(plan(resolve(name, "alpha_relu", Options(config=config))))
        for name in catalogue.entries("datasets")
    ]
    assert len(scripts) > 20
    # bash -n reads all of them, and runs nothing.
    subprocess.run(["bash", "-n"], input="\n".join(scripts), text=True, check=True)
