"""Reading, merging and checking the entries of the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS
from fairseq_sparse.recipes import catalogue

TREES = st.dictionaries(
    st.sampled_from("ab"), st.dictionaries(st.sampled_from("xyz"), st.integers(), min_size=1)
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes the text of ``datasets.yaml`` the catalogue."""

    def clear() -> None:
        catalogue._document.cache_clear()
        catalogue.entries.cache_clear()

    def write(text: str) -> None:
        (tmp_path / "datasets.yaml").write_text(text)
        clear()

    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    yield write
    clear()


def flat(tree: dict) -> dict:
    return {(first, second): v for first, part in tree.items() for second, v in part.items()}


@given(st.lists(TREES, max_size=4))
def test_merging_is_deep_and_the_later_wins(trees: list[dict]) -> None:
    expected: dict = {}
    for tree in trees:
        expected |= flat(tree)
    before = [flat(tree) for tree in trees]
    assert flat(catalogue.merge(*trees)) == expected
    assert [flat(tree) for tree in trees] == before


def test_an_entry_wins_over_its_bases_and_a_base_over_the_one_before(write) -> None:
    write("""
one: {base: [low, high], corpus: {c: one}}
bases:
  lowest: {corpus: {a: lowest, b: lowest, c: lowest, d: lowest}}
  low: {base: lowest, corpus: {b: low, c: low}}
  high: {corpus: {c: high, d: high}}
""")
    assert catalogue.entries("datasets") == {
        "one": {"corpus": {"a": "lowest", "b": "low", "c": "one", "d": "high"}}
    }


def test_an_entry_wins_over_the_configurations_of_its_base(write) -> None:
    write("""
one: {base: low, training: {batch: 1}, gpu: {training: {average: 1}}}
bases:
  low:
    cpu: {training: {batch: 2, average: 2}}
    gpu: {training: {batch: 3, average: 3}}
""")
    found = catalogue.find("datasets", "one")
    merged = {name: catalogue.merge(found, found[name])["training"] for name in ("cpu", "gpu")}
    assert merged == {"cpu": {"batch": 1, "average": 2}, "gpu": {"batch": 1, "average": 1}}


@pytest.mark.parametrize("base", ["low", "[high, low]"])
def test_an_unknown_base_is_named_with_its_entry(base: str, write) -> None:
    write(f"one: {{base: {base}}}\nbases: {{lower: {{}}, high: {{}}}}")
    with pytest.raises(RecipeError, match=r"datasets\.yaml, one: .*'low'.* lower"):
        catalogue.entries("datasets")


def test_a_mistyped_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(RecipeError, match=r"data set 'multi30k_en_de'.*\bmulti30k_de_en\b"):
        catalogue.find("datasets", "multi30k_en_de")
    with pytest.raises(RecipeError, match=", ".join(catalogue.entries("variants"))):
        catalogue.find("variants", "xyz")


def test_an_unknown_key_is_named_with_file_and_entry() -> None:
    catalogue.check_keys("tables", "one", {"title": 1}, ["title", "rows"])
    with pytest.raises(RecipeError, match=r"tables\.yaml, one: .* part\.titel; .* title\?"):
        catalogue.check_keys("tables", "one", {"titel": 1}, ["title", "rows"], "part.")


@pytest.mark.parametrize(
    "text",
    ["one: {}\none: {}", "one:\n  corpus: {a: 1,\n    a: 2}", "one: [", "one: {[a]: 1}"],
)
def test_a_file_with_a_bad_key_or_bad_syntax_is_refused(text: str, write) -> None:
    write(text)
    with pytest.raises(RecipeError, match=r"datasets\.yaml.* line [123]"):
        catalogue.entries("datasets")


@pytest.mark.parametrize("name", catalogue.section("datasets", "files"))
def test_files_have_safe_names_addresses_and_checksums(name: str) -> None:
    collection = catalogue.section("datasets", "files")[name]
    catalogue.check_keys("datasets", name, collection, ["address", "files"], "files.")
    for file, value in collection["files"].items():
        default = collection.get("address", "")
        address, checksum = value if isinstance(value, list) else (default, value)
        assert not Path(file).is_absolute() and ".." not in Path(file).parts
        assert re.fullmatch(r"https?://[^\s]+", address)
        assert re.fullmatch(r"([0-9a-f]{32}|[0-9a-f]{64})?", checksum)


def test_attentions_are_those_of_the_package() -> None:
    listed = catalogue.section("variants", "attentions")
    assert listed.keys() == ATTENTION_KINDS.keys()
    for name, alpha in listed.items():
        has_alpha = name == "softmax" or ATTENTION_KINDS[name].is_entmax
        assert (alpha is not None) == has_alpha
        if has_alpha:
            assert alpha == OUTPUT_TRANSFORMS[name].alpha or name == "entmax"


@pytest.mark.parametrize("name", catalogue.entries("variants"))
def test_variants_take_what_their_transforms_take(name: str) -> None:
    entry = catalogue.find("variants", name)
    transform = OUTPUT_TRANSFORMS[entry["flags"]["output-transform"]]
    assert entry["flags"]["criterion"] == transform.criterion
    for option in entry.get("takes", []):
        assert getattr(transform, option.replace("output", "takes"))
