"""Sparse attention in a user's workflow: train, average, generate, with stock commands."""

import re

import pytest

import toy
from commands import generate, hypotheses, logged, train
from fairseq_sparse.checkpoints.loading import load_checkpoint

ADAPTIVE = ("--attention", "rela_g", "--attention-cross", "entmax", "--attention-alpha-learnable")
CRITERION = ("--criterion", "alpha_relu_loss", "--output-transform", "alpha_relu")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    flags = (*ADAPTIVE, *CRITERION, "--attention-dropout", "0.1", "--max-epoch", "2")
    return folder, train(data, folder, *flags).stdout


@pytest.mark.slow
def test_training_logs_the_learned_alpha(run):
    for record in logged(run[1], "train"):
        ends = [float(record[f"train_alpha_cross{end}"]) for end in ("_min", "", "_max")]
        assert 1 < ends[0] <= ends[1] <= ends[2] <= 2 and "train_alpha_enc" not in record
    assert ends[0] < ends[2], "the heads learned nothing"


def test_the_attention_is_in_the_checkpoint(run):
    keys = load_checkpoint(run[0] / "checkpoint_last.pt")["model"]
    assert "encoder.layers.0.self_attn.norm.gate" in keys
    assert "decoder.layers.0.encoder_attn.alpha_logit" in keys
    assert "decoder.layers.0.encoder_attn.norm.gate" not in keys


def test_averaged_model_translates_and_aligns(data, run):
    folder, _ = run
    averaging = ("--inputs", folder, "--num-epoch-checkpoints", "2", "--output", folder / "mean.pt")
    toy.command("average", *averaging)
    aligned = generate(data, folder / "mean.pt", "--beam", "3", "--print-alignment").stdout
    plain = generate(data, folder / "mean.pt", "--beam", "3").stdout
    assert hypotheses(aligned) == hypotheses(plain) and len(hypotheses(plain)) == 30
    links = dict(re.findall(r"^A-(\d+)\t(.*)$", aligned, re.MULTILINE))
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", aligned, re.MULTILINE))
    assert set(links) == set(sources)
    for number, line in links.items():
        words = hypotheses(aligned)[int(number)][0][1].split()
        for link in line.split():
            source, target = map(int, link.split("-"))
            assert source < len(sources[number].split()) and target < len(words)
