"""The settings files for fairseq-hydra-train: each trains a model that other commands can use."""

import shutil

import pytest
import torch
from fairseq.models import build_model
from omegaconf import OmegaConf

import toy
from commands import generate, hypotheses, logged
from fairseq_sparse.checkpoints.loading import load_checkpoint

FOLDER = toy.ROOT / "examples" / "hydra"
TRANSLATION = (
    "+model.encoder_embed_dim=32 +model.decoder_embed_dim=32 +model.encoder_layers=1 "
    "+model.decoder_layers=1 task.source_lang=de task.target_lang=en"
).split()
OVERRIDES = {
    "transformer_sparse": [*TRANSLATION, "task.max_source_positions=200"],
    "lstm_sparse": TRANSLATION,
    "transformer_lm_sparse": ["task.tokens_per_sample=12", "+model.decoder_layers=1"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = toy.binarised_text(tmp_path_factory.mktemp("text"))
    # Language models need the same files without languages in their names.
    shutil.copy(folder / "dict.en.txt", folder / "dict.txt")
    for path in list(folder.glob("*.de-en.en.*")):
        shutil.copy(path, folder / path.name.replace(".de-en.en", ""))
    return folder


def train(config, data, folder, *overrides, check=True):
    """Run two updates of ``fairseq-hydra-train``; return the checkpoint's path and the output."""
    flags = f"""
        --config-dir {FOLDER} --config-name {config} hydra.run.dir={folder}/run
        common.user_dir={toy.USER_DIR} task.data={data} checkpoint.save_dir={folder}/checkpoints
        common.cpu=true common.log_format=json dataset.num_workers=0 optimization.max_update=2
        dataset.batch_size=50 dataset.max_tokens=1000
    """
    result = toy.run("fairseq_cli.hydra_train", *flags.split(), *overrides, check=check)
    return folder / "checkpoints" / "checkpoint_last.pt", result.stdout + result.stderr


def test_there_is_one_for_each_model_and_it_says_how_to_run_it():
    assert {path.stem for path in FOLDER.iterdir()} == set(OVERRIDES)
    for path in FOLDER.iterdir():
        assert f"--config-name {path.stem}" in path.read_text()


@pytest.mark.slow_except("transformer_sparse")
@pytest.mark.parametrize("config", OVERRIDES)
def test_it_trains_and_its_checkpoint_is_used_by_the_other_commands(config, data, tmp_path):
    checkpoint, _ = train(config, data, tmp_path, *OVERRIDES[config])
    state = load_checkpoint(checkpoint)
    assert state["optimizer_history"][-1]["num_updates"] == 2
    written = OmegaConf.load(FOLDER / f"{config}.yaml")
    for name in ("output_transform", "attention"):
        assert state["cfg"]["model"][name] == written.model[name]
    if config == "transformer_lm_sparse":
        flags = ("--task", "language_modeling_sparse", "--tokens-per-sample", 12)
        flags += ("--max-tokens", 500)
        arguments = (data, "--user-dir", toy.USER_DIR, "--path", checkpoint, "--cpu")
        result = toy.run("fairseq_cli.validate", *arguments, *flags, "--log-format", "json")
        (record,) = logged(result.stdout + result.stderr, "valid")
        assert float(record["valid_gold_zero"]) >= 0
        return
    if config == "transformer_sparse":
        assert state["cfg"]["model"]["max_source_positions"] == 200
    output = generate(data, checkpoint, "--max-len-b", 10)
    assert len(hypotheses(output.stdout)) == 30


def config(name, criterion=None, **settings):
    cfg = OmegaConf.create({"model": {"_name": name, **settings}, "criterion": criterion})
    OmegaConf.set_struct(cfg, True)
    return cfg


@pytest.mark.parametrize(
    "name",
    [
        "transformer_sparse_tiny",
        "transformer_sparse_iwslt_de_en",
        "lstm_sparse_morph",
        "lstm_sparse",
    ],
)
def test_a_named_architecture_is_that_of_the_command_line(name):
    task = toy.task()
    cfg = config(name, output_transform="entmax15", dropout="0.25")
    from_file = build_model(cfg.model, task)
    flags = ("--output-transform", "entmax15", "--dropout", 0.25)
    from_flags = toy.model(*flags, arch=name, for_task=task, criterion=None)
    shapes = [
        {name: value.shape for name, value in model.state_dict().items()}
        for model in (from_file, from_flags)
    ]
    assert shapes[0] == shapes[1]
    assert cfg.model.dropout == 0.25
    torch.manual_seed(1)
    again = build_model(cfg.model, task)  # as from a checkpoint
    assert {name: value.shape for name, value in again.state_dict().items()} == shapes[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"output_transfrom": "entmax15"},
        {"output_transform": "entmax2"},
        {"output_alpha": "much"},
        {"encoder_layers": 2.5},
        {"share_all_embeddings": "no"},
        {"output_tau": 0.5},
        {"attention": "rela_g", "encoder_attention_heads": 7},
    ],
    ids=str,
)
def test_what_is_no_setting_is_refused(settings):
    cfg = config("transformer_sparse_tiny", {"_name": "entmax_loss"}, **settings)
    name = [*settings][-1]
    with pytest.raises(ValueError, match=f"{name}|--{name.replace('_', '-')}"):
        build_model(cfg.model, toy.task())


def test_a_checkpoint_of_another_fairseq_may_have_settings_that_this_one_lacks():
    cfg = config("transformer_sparse_tiny")
    build_model(cfg.model, toy.task())
    OmegaConf.set_struct(cfg, False)
    cfg.model.of_another_version = 1
    build_model(cfg.model, toy.task())
