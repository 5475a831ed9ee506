"""Trees of the translations of table models, for tests of the tree and of its picture."""

from automata import EOS, FIRST_WORD, Table, TableModel, make_dictionary, make_sample
from fairseq_sparse.generation.exact_search import NextTokens

SEED = FIRST_WORD + 3


def next_tokens(*models: Table) -> NextTokens:
    dictionary = make_dictionary(models[0].words)
    built = [TableModel(dictionary, table) for table in models]
    net_input = make_sample([SEED])["net_input"]
    encoder_outs = [model.encoder(**net_input) for model in built]
    return NextTokens(built, encoder_outs, dictionary.pad(), *[dictionary.eos()] * 2)


def walk(node, prefix=()):
    """Yield a node and all below it with the tokens that lead to it, depth first."""
    yield node, prefix
    for child in node["children"]:
        yield from walk(child, (*prefix, child["token"]))


def word(token: int) -> str:
    return "</s>" if token == EOS else f"w{token}"


END = ("</s>",)
