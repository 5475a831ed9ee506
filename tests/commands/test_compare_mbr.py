"""The plan of minimum Bayes risk decoding of finished runs."""

from __future__ import annotations

import json
from pathlib import Path

from fairseq_sparse.commands import compare_mbr
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve

NAMES = ["test.en", "test.en.2", "test.en.3", "test.en.4"]


def finished(tmp_path: Path) -> Recipe:
    options = Options(run_dir=tmp_path / "run", data_dir=tmp_path / "data")
    recipe = resolve("tatoeba_de_en", "softmax", options)
    recipe.run_dir.mkdir()
    for name in ("average.pt", "summary.json"):
        (recipe.run_dir / name).touch()
    (recipe.run_dir / "bleu.json").write_text(json.dumps({"signature": "nrefs:4|tok:13a"}))
    return recipe


def test_results_are_scored_with_all_references(tmp_path: Path) -> None:
    (*_, compare) = compare_mbr.plan([finished(tmp_path)], tmp_path / "out", 3, "chrf", 1).stages
    (command,) = compare.commands
    texts = [Path(word).name for word in command.argv]
    start = texts.index("--reference") + 1
    assert texts[start : start + 5] == [*NAMES, "--tokenize"]
    assert {path.name for path in compare.inputs} >= set(NAMES)
