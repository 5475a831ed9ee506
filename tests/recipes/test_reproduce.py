"""Tables from planned, trained and finished runs; mostly with a stand-in that trains nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_sparse.commands import cli, sweep
from fairseq_sparse.commands import reproduce as command
from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import records, reproduce, tables
from fairseq_sparse.recipes.plan import Plan, Stage
from fairseq_sparse.recipes.recipe import Options, Recipe
from fairseq_sparse.recipes.resolve import resolve
from fairseq_sparse.recipes.tables import Table

TINY = Table(
    paper="tiny",
    name="1",
    title="Tiny table_1, 100%",
    datasets=("multi30k_de_en", "quickstart"),
    settings="",
    rows=(("softmax", {}), ("sparsemax", {}), ("alpha_relu", {"output_tau": "0.5"})),
    columns=("bleu", "nonzeros"),
)

FORMULAS = Table("tiny", "2", "formulas", follow_up=("draw {stem}.png {stem}.svg",))


class StandIn:
    """Finishes runs without training, or lets them fail; ``done`` has what it has worked on."""

    def __init__(self, notes: Path) -> None:
        self.notes, self.failing = notes, ()

    def plan(self, recipe: Recipe, launch: object) -> Plan:
        def prepare() -> None:
            self._note("prepare", recipe.dataset)

        def train() -> None:
            self._note(recipe.dataset, recipe.label or recipe.variant, f"seed {recipe.seed}")
            if (recipe.dataset, recipe.variant) in self.failing:
                raise RecipeError("it went wrong")
            names = {"dataset": recipe.dataset, "variant": recipe.variant, "seed": recipe.seed}
            bleu = {"bleu": 20.0 + recipe.seed, "signature": "tok:13a"}
            content = {**names, "settings": recipe.settings, "bleu": bleu}
            (recipe.run_dir / "run.json").write_text(json.dumps(recipe.as_json()))
            (recipe.run_dir / "summary.json").write_text(json.dumps(content))

        data, run = recipe.data_dir, recipe.run_dir
        stages = (
            Stage("prepare", data, {}, (), (), (), before=prepare),
            Stage("train", run, {}, (), (run / "summary.json",), (), before=train),
        )
        return Plan("stand-in", stages)

    def _note(self, *words: str) -> None:
        with open(self.notes, "a", encoding="utf-8") as handle:
            handle.write(", ".join(words) + "\n")

    def done(self) -> list[str]:
        """Return and forget what has been worked on."""
        lines = self.notes.read_text(encoding="utf-8").splitlines()
        self.notes.unlink()
        return lines


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path / "notes")
    monkeypatch.setattr(reproduce, "plan", found.plan)
    monkeypatch.setattr(command, "read_table", lambda paper, name: TINY)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_grid_goes_on_after_a_failure_and_again(stand_in: StandIn, tmp_path: Path, capfd) -> None:
    stand_in.failing = (("quickstart", "sparsemax"),)
    arguments = ["tiny", "1", "--cpu", "--seeds", "2", "--runs", "Läufe hier"]
    assert cli.run("reproduce", arguments) == 1
    rows = ["softmax", "sparsemax", "alpha_relu, τ = 0.5"]
    expected = [
        f"{name}, {row}, seed {n}" for n in (1, 2) for name in TINY.datasets for row in rows
    ]
    done = stand_in.done()
    assert set(done[:2]) == {f"prepare, {name}" for name in TINY.datasets} and done[2:] == expected
    runs = tmp_path / "Läufe hier"
    said = capfd.readouterr()
    for folder in ("sparsemax-cpu", "sparsemax-cpu-seed-2"):
        log = runs / "quickstart" / folder / "logs" / "train.log"
        assert f": {log}\n" in said.err
    stem = runs / "tables" / "tiny_1-cpu"
    text = stem.with_suffix(".md").read_text(encoding="utf-8")
    assert "4 of 6 runs are finished" in text and "21.50 ± 0.71" in text and text in said.out
    assert (runs / "quickstart" / "alpha_relu-tau-0.5-cpu-seed-2" / "summary.json").exists()

    stand_in.failing = ()
    assert cli.run("reproduce", arguments) == 0
    assert stand_in.done() == [f"quickstart, sparsemax, seed {seed}" for seed in (1, 2)]
    arguments += ["--settings", "sue", "--dataset", "iwslt14_de_en"]
    assert cli.run("reproduce", arguments) == 0
    assert stand_in.done()[-1] == "iwslt14_de_en, alpha_relu, τ = 0.5, seed 2"
    stem = runs / "tables" / "tiny_1-sue-cpu-iwslt14_de_en"
    assert "settings: sue" in stem.with_suffix(".md").read_text(encoding="utf-8")
    assert r"Tiny table\_1, 100\%" in stem.with_suffix(".tex").read_text(encoding="utf-8")
    found = json.loads(stem.with_suffix(".json").read_text())["datasets"]["iwslt14_de_en"]["rows"]
    assert found[2]["model"]["output_tau"] == "0.5"


def test_a_dry_run_lists_the_runs_and_makes_nothing(
    stand_in: StandIn, tmp_path: Path, capsys
) -> None:
    runs = tmp_path / "runs" / "quickstart"
    for folder, name in (("softmax-cpu", "summary.json"), ("sparsemax-cpu", "other")):
        (runs / folder).mkdir(parents=True)
        (runs / folder / name).touch()
    before = sorted(tmp_path.rglob("*"))
    options = ["--dataset", "quickstart", "--cpu", "--seeds", "1", "--dry-run"]
    assert cli.run("reproduce", ["tiny", "1", *options]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"done   seed 1  quickstart  softmax  {runs}/softmax-cpu",
        f"begun  seed 1  quickstart  sparsemax  {runs}/sparsemax-cpu",
        f"to do  seed 1  quickstart  alpha_relu, τ = 0.5  {runs}/alpha_relu-tau-0.5-cpu",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_without_a_finished_run_there_is_no_table(
    stand_in: StandIn, tmp_path: Path, capsys
) -> None:
    assert cli.run("reproduce", ["tiny", "1", "--cpu", "--table-only"]) == 1
    assert "no run of the table is finished" in capsys.readouterr().err
    assert not stand_in.notes.exists() and not (tmp_path / "runs").exists()


def test_settings_of_a_table_are_for_its_own_data_sets() -> None:
    table = replace(TINY, settings="sue")
    assert reproduce.choose(table, [], "") == (TINY.datasets, "sue")
    assert reproduce.choose(table, ["quickstart"], "") == (("quickstart",), "sue")
    assert reproduce.choose(table, ["iwslt14_de_en"], "") == (("iwslt14_de_en",), "")
    mixed = ["quickstart", "iwslt14_de_en"]
    assert reproduce.choose(table, mixed, "rela") == (tuple(mixed), "rela")
    assert reproduce.choose(TINY, mixed, "") == (tuple(mixed), "")
    for datasets, message in ((mixed, "separately"), (["quickstart"] * 2, "more than once")):
        with pytest.raises(RecipeError, match=message):
            reproduce.choose(table, datasets, "")
    with pytest.raises(RecipeError, match="needs no data"):
        reproduce.choose(replace(table, rows=()), ["quickstart"], "")


def test_what_a_user_sets_extends_what_a_row_sets(tmp_path: Path) -> None:
    row = ("entmax15+entmax15", {"overrides": {"attention-scale-queries": "true"}})
    table = replace(TINY, datasets=("quickstart",), rows=(row,))
    options = Options(epochs=3, overrides={"dropout": "0.5"}, raw_dir=tmp_path)
    ((recipes,),) = reproduce.plan_runs(table, (1, 4), options, tmp_path, tmp_path).recipes.values()
    assert [recipe.seed for recipe in recipes] == [1, 4]
    for recipe in recipes:
        assert recipe.training.flags["dropout"] == "0.5"
        assert recipe.training.flags["max-epoch"] == 3
        assert recipe.model.flags["attention-scale-queries"] is True


def test_follow_ups_get_the_finished_models_of_the_first_seed_or_of_all(
    stand_in: StandIn, tmp_path: Path
) -> None:
    table = replace(TINY, datasets=("quickstart",))
    runs = reproduce.plan_runs(table, (1, 2), Options(), tmp_path / "data", tmp_path / "runs")
    stand_in.failing = (("quickstart", "sparsemax"),)
    assert len(reproduce.train(runs, 1)) == 2
    for all_seeds, seeds in ((False, [1, 1]), (True, [1, 1, 2, 2])):
        chosen = replace(runs, table=replace(table, all_seeds=all_seeds))
        (found,) = reproduce.finished(chosen).values()
        assert [recipe.seed for recipe in found] == seeds
        assert {recipe.variant for recipe in found} == {"softmax", "alpha_relu"}


def test_a_figure_of_formulas_needs_no_runs_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(tables, "_program", lambda word: ("touch", "-a", "-d", "now"))
    monkeypatch.setattr(command, "read_table", lambda paper, name: FORMULAS)
    arguments = ["tiny", "2", "--cpu", "--runs", str(tmp_path / "R&D")]
    assert cli.run("reproduce", [*arguments, "--dry-run"]) == 0
    assert capfd.readouterr().out == "then   draw {stem}.png {stem}.svg\n"
    assert not list(tmp_path.iterdir())
    for said in ("finished in", "done already"):
        assert cli.run("reproduce", arguments) == 0
        assert said in capfd.readouterr().err
    made = {path.name for path in (tmp_path / "R&D" / "tables").glob("*.*")}
    assert made == {"tiny_2.png", "tiny_2.svg", "tiny_2.txt"}


@pytest.mark.slow
@pytest.mark.parametrize("given", ["--gold x", "--layer 2", "--ends 5", "--sentences 1"])
def test_an_option_for_other_tables_is_refused(given: str) -> None:
    options = command.parse_arguments(["rela", "6", *given.split()])
    with pytest.raises(RecipeError, match=given.split()[0]):
        command.run(options)


def test_a_missing_file_of_tags_is_named_first(tmp_path: Path) -> None:
    words = ["rela", "previous", "--tags", str(tmp_path / "tags"), "--runs", str(tmp_path)]
    with pytest.raises(RecipeError, match="tags"):
        command.run(command.parse_arguments(words))


def test_a_figure_is_drawn(tmp_path: Path) -> None:
    assert cli.run("reproduce", ["sparse_seq2seq", "fig3", "--cpu", "--runs", str(tmp_path)]) == 0
    stem = tmp_path / "tables" / "sparse_seq2seq_fig3"
    assert stem.with_suffix(".png").stat().st_size > 10_000 and stem.with_suffix(".svg").is_file()


ALPHAS = [(output, attention) for output in (1.0, 1.5) for attention in (1.0, 1.25)]


def test_a_sweep_has_each_pair_of_alphas_once_and_reuses_runs_of_tables(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(reproduce.ensemble, "plan", lambda recipes, folder: Plan("none", ()))
    arguments = ["quickstart", "--output-alphas", "1,1.5", "--attention-alphas", "1,1.25", "--cpu"]
    assert cli.run("sweep", [*arguments, "--seed", "1"]) == 0
    assert len(stand_in.done()) == 5
    assert cli.run("sweep", [*arguments, "--seed", "1,3"]) == 0
    done = stand_in.done()
    assert len(done) == 4 and all(line.endswith("seed 3") for line in done)
    stem = tmp_path / "runs" / "tables" / "sweep_quickstart-cpu"
    text = stem.with_suffix(".md").read_text(encoding="utf-8")
    assert "| 22.00 ± 1.41 (2) |" in text and text in capfd.readouterr().out
    grid = json.loads(stem.with_suffix(".json").read_text())["grid"]
    models = [cell["model"] for cell in grid]
    assert [(found["output_alpha"], found["attention_alpha"]) for found in models] == ALPHAS
    table = replace(
        TINY,
        datasets=("quickstart",),
        rows=tuple(tables.expand({"variant": "entmax", "output_alpha": 1.5, "attention_alpha": 1})),
    )
    runs = reproduce.plan_runs(table, (1, 3), Options(), tmp_path / "data", tmp_path / "runs")
    assert not reproduce.train(runs, 1) and not stand_in.notes.exists()


def test_an_ensemble_of_models_that_have_changed_is_not_shown(tmp_path: Path) -> None:
    options = Options(config="cpu", data_dir=tmp_path / "data")
    members = [
        resolve("quickstart", "softmax", replace(options, seed=seed, run_dir=tmp_path / str(seed)))
        for seed in (1, 2)
    ]
    for member in members:
        member.run_dir.mkdir()
        for name in ("average.pt", "summary.json"):
            (member.run_dir / name).write_text("")
    assert reproduce.finished_ensemble(members) is None
    folder = reproduce.ensemble_folder(members)
    (folder / "stages").mkdir(parents=True)
    (stage,) = reproduce.ensemble.plan(members, folder).stages
    for path in stage.outputs:
        path.write_text("")
    records.write(stage, records.FINISHED, records.check(stage).inputs)
    assert reproduce.finished_ensemble(members) == folder
    model = members[1].run_dir / "average.pt"
    model.write_text("of more epochs")
    assert reproduce.finished_ensemble(members) is None
    model.unlink()
    assert reproduce.finished_ensemble(members) is None


@pytest.mark.parametrize("wrong", ["0.5", "x", ""])
def test_alphas_below_one_are_refused(wrong: str, capsys) -> None:
    with pytest.raises(SystemExit):
        sweep.parse_arguments(["quickstart", "--output-alphas", f"1,{wrong}"])
    assert "--output-alphas" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="language models"):
        sweep.run(sweep.parse_arguments(["tinyshakespeare", "--cpu"]))


def test_a_table_is_tested_with_all_references(tmp_path: Path) -> None:
    recipe = resolve("tatoeba_de_en", "softmax", Options(data_dir=tmp_path))
    runs = reproduce.Runs(TINY, {"tatoeba_de_en": [[recipe]]})
    found = reproduce.references(runs)["tatoeba_de_en"]
    assert [path.name for path in found] == ["test.en", "test.en.2", "test.en.3", "test.en.4"]
