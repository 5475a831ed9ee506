"""The model of examples/inflection writes forms that it has not seen, and knows when it is sure."""

import pytest

import toy
from fairseq_sparse.commands import cli

WORDS = [
    ("lang=english tag=V tag=V.PTCP tag=PRS s t o p", "s t o p p i n g"),
    (
        "lang=spanish tag=V tag=IND tag=PST tag=2 tag=SG tag=PFV m a c h u c a r",
        "m a c h u c a s t e",
    ),
    ("lang=turkish tag=N tag=PL tag=ACC k i t a p", "k i t a p l a r ı"),
]


@pytest.mark.parametrize(("lemma", "form"), WORDS)
def test_a_word_is_inflected(lemma: str, form: str, capsys: pytest.CaptureFixture) -> None:
    model = str(toy.ROOT / "examples" / "inflection")
    assert cli.run("translate", [model, "--tokenizer", "space", "--cpu", lemma]) == 0
    assert form in capsys.readouterr().out.splitlines()
