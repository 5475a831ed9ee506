import json

import frozen_checkpoints
from paper import proofs


def test_more_nodes_prove_more_and_never_find_worse(tmp_path, capsys):
    folder = frozen_checkpoints.FOLDER / "set1-py311"
    names = ("entmax15_topk", "alpha_relu_rela_g")
    paths = [frozen_checkpoints.unpack(folder / f"{name}.pt.gz", tmp_path) for name in names]
    arguments = [str(frozen_checkpoints.DATA), "--path", *map(str, paths), "--cpu"]
    arguments += ["--beam", "1", "--nodes", "1,30", "--sentences", "4"]
    assert proofs.main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    measured = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["node_limit"] for row in measured] == [0, 1, 30] * 2
    assert capsys.readouterr().out.count("\n") == 2 + len(measured)
    for first in (0, 3):
        beam, *others = measured[first : first + 3]
        assert beam["nodes"] == beam["better"] == 0
        for before, after in zip([beam, *others], others, strict=False):
            assert after["sentences"] == len(after["scores"]) == 4
            assert after["proven"] >= before["proven"] and after["better"] >= before["better"]
            assert before["nodes"] < after["nodes"] <= after["node_limit"]
            scores = zip(before["scores"], after["scores"], strict=True)
            assert all(new >= old - 1e-5 for old, new in scores)
    assert any(row["better"] > 0 for row in measured)
