"""Table 3 of Speeding Up Entmax, printed by scripts/paper/thresholds.py."""

import json

import pytest

import toy
from bad_input import assert_refused
from paper import thresholds

pytest.importorskip("scipy")
PAPER = {10_000: (0.0184, 0.33), 40_000: (0.0171, 0.17), 60_000: (0.0169, 0.14)}
# All settings that the threshold of the untrained model depends on.
LAYERS = "--output-init xavier_uniform --encoder-layers 1 --decoder-layers 2 --dropout 0.1"
LAYERS += " --encoder-normalize-before --decoder-normalize-before"


def rows(folder, *arguments):
    assert thresholds.main([*map(str, arguments), "--json", str(folder / "rows.json")]) == 0
    return json.loads((folder / "rows.json").read_text())["rows"]


def test_it_is_the_paper_s(tmp_path):
    found = rows(tmp_path, f"--model-flags={LAYERS}", "--tokens", 256)
    assert [row["d_vocab"] for row in found] == list(PAPER)
    for row in found:
        p_star, tau = PAPER[row["d_vocab"]]
        assert row["d_model"] == 512
        assert row["p_star"] == pytest.approx(p_star, abs=1.1e-4)
        assert row["formula"] == pytest.approx(tau, abs=5e-3)
        assert row["data"] == pytest.approx(tau, abs=1e-2)
        assert row["weights"] == pytest.approx(row["data"], rel=0.04)
        assert row["median_p"] > 0.15


def test_one_batch_of_the_default_model_is_enough(tmp_path):
    # With one matrix for all embeddings, all states would be nearly equal and tau .324.
    (row,) = rows(tmp_path, "--vocabulary", 10_000, "--tokens", 256)
    assert row["data"] == pytest.approx(0.33, abs=5e-3)
    assert row["data"] == pytest.approx(row["weights"], abs=4e-3)


def test_fairseq_s_own_weights_have_another_threshold(tmp_path):
    flags = LAYERS.replace("xavier_uniform", "stock")
    (row,) = rows(tmp_path, "--vocabulary", 10_000, f"--model-flags={flags}", "--tokens", 256)
    assert row["data"] == pytest.approx(row["weights"], rel=0.03)
    assert row["data"] > 1.3 and row["formula"] < 0.33


def test_the_first_batch_of_prepared_data(tmp_path):
    data = toy.binarised_text(tmp_path, pairs=40)
    flags = f"{LAYERS} --encoder-embed-dim 64 --decoder-embed-dim 64"
    (row,) = rows(tmp_path, "--data", data, f"--model-flags={flags}", "--tokens", 300)
    assert row["name"] == str(data) and row["d_model"] == 64


def test_bad_input_is_refused_by_name(tmp_path, capsys):
    data = toy.binarised_text(tmp_path, pairs=4)
    main = thresholds.main
    assert_refused(capsys, "--tokens 2", main, ["--data", str(data), "--tokens", "2"])
    for path in data.glob("train.*"):
        path.unlink()
    assert_refused(capsys, data, main, ["--data", str(data)])
    flags = ["--vocabulary", "50", "--model-flags=--nonsense 1"]
    assert_refused(capsys, "--nonsense", main, flags)
