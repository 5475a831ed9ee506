"""Bad pairs made on purpose, and how well they are found."""

import json

import pytest
import torch

import frozen_checkpoints
from bad_input import assert_refused
from paper import noise

EOS = 2


def sentences(first, count):
    return [torch.tensor([first + number] * (2 + number % 3) + [EOS]) for number in range(count)]


def test_each_kind_of_bad_pair_is_what_its_name_says():
    sources, targets = sentences(100, 30), sentences(500, 30)
    changed, made = noise.corrupt(sources, targets, 40, seed=2)
    assert {kind: len(numbers) for kind, numbers in made.items()} == dict.fromkeys(noise.KINDS, 3)
    bad = set().union(*made.values())
    for number, (target, new) in enumerate(zip(targets, changed, strict=True)):
        if number in made["inserted"]:
            assert new[: len(target) - 1].equal(target[:-1])
            new = new[len(target) - 1 :]
        elsewhere = {"source": sources}.get(
            next((kind for kind in noise.KINDS if number in made[kind]), ""), targets
        )
        if number in made["copy"]:
            assert new.equal(sources[number])
        elif number in bad:
            others = [n for n, text in enumerate(elsewhere) if text.equal(new)]
            assert others and number not in others
        else:
            assert new.equal(target)
    again, _ = noise.corrupt(sources, targets, 40, seed=2)
    assert all(one.equal(other) for one, other in zip(changed, again, strict=True))


def test_a_perfect_ranking_has_precision_one():
    made = {kind: {number} for number, kind in enumerate(noise.KINDS)}
    values = {number: -float(number) for number in range(20)}
    best, chance = noise.precisions(values, True, made)
    assert best == [1] * 5
    worst, same = noise.precisions(values, False, made)
    assert max(worst) < 0.2 and same == chance and max(worst[:-1]) < min(chance) < max(chance) < 1


@pytest.mark.parametrize("flags", [("--percent", "30"), ("--max-tokens", "2", "--percent", "50")])
def test_too_few_pairs_and_too_small_batches_are_refused(tmp_path, capsys, flags):
    file = frozen_checkpoints.FOLDER / "set1-py311" / "alpha_relu_rela_g.pt.gz"
    path = frozen_checkpoints.unpack(file, tmp_path)
    words = [str(frozen_checkpoints.DATA), "--path", str(path), "--cpu", *flags]
    assert_refused(capsys, flags[0], noise.main, words)


def test_only_rectified_attention_has_null_rates(tmp_path):
    folder = frozen_checkpoints.FOLDER / "set1-py311"
    paths = [
        f"{name}={frozen_checkpoints.unpack(folder / f'{name}.pt.gz', tmp_path)}"
        for name in ("entmax15_topk", "alpha_relu_rela_g")
    ]
    output = tmp_path / "out.json"
    words = [str(frozen_checkpoints.DATA), "--path", *paths, "--cpu", "--percent", "50"]
    assert noise.main([*words, "--json", str(output)]) == 0
    found = json.loads(output.read_text())
    assert sum(found["bad"].values()) == round(found["pairs"] / 2)
    ranked = [(row["model"], row["ranked by"]) for row in found["results"]]
    assert ("alpha_relu_rela_g", "null rate") in ranked
    assert ("entmax15_topk", "null rate") not in ranked and len(ranked) == 7
