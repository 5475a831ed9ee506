"""Extraction of word alignments from a translation model's attention on a data set."""

from collections.abc import Iterator

from fairseq.data import FairseqDataset
from torch import Tensor

from fairseq_sparse.measure.alignment import ALIGNMENT_KINDS
from fairseq_sparse.measure.alignment.alignment_folder import WORDS, AlignmentFolder, link_files
from fairseq_sparse.measure.alignment.word_alignment import Words, to_pharaoh, word_links, words_of
from fairseq_sparse.measure.attention.forced_attention import forced_attention
from fairseq_sparse.measure.translator import Translator, with_best_translations


def extract_part(
    folder: AlignmentFolder,
    numbers: range,
    translator: Translator,
    dataset: FairseqDataset,
    max_tokens: int,
) -> Iterator[int]:
    """Align some sentences and write the links to a folder, with one batch in memory at a time.

    Args:
        folder: its settings say what is given to the model, and how words were split.
        numbers: the numbers of the sentences, without gaps.
        translator: one model.
        dataset: all sentences.
        max_tokens: largest number of tokens in a batch.

    Yields:
        The number of sentences done since the last yield.

    Raises:
        AnalysisError: ``max_tokens`` is too small for a sentence.
        OSError: the part cannot be written.
        ValueError: attention weights are NaN.
    """
    task, settings = translator.task, folder.settings
    names = [*WORDS, *link_files(settings)]
    lines = {name: [""] * len(numbers) for name in names}
    missing = set(numbers)

    batches = translator.batches(settings["subset"], max_tokens, numbers)
    if settings["hypothesis"]:
        batches = with_best_translations(translator, batches, settings["beam"])
    for sample in batches:
        for pair in forced_attention(translator.model, sample, task.source_dictionary.pad()):
            missing.remove(pair.number)
            words = words_of_pair(task, pair.source, pair.target, settings["subwords"])
            links = word_links(pair.weights["cross"].numpy(), *words)
            found = [*(" ".join(side.text) for side in words), *map(to_pharaoh, links)]
            for name, line in zip(names, found, strict=True):
                lines[name][pair.number - numbers[0]] = line
        yield len(sample["id"])
    for number in missing:
        # Keep the words of a sentence that is too long, so that line numbers match other texts.
        pair = dataset[number]
        given = pair["source"][:0] if settings["hypothesis"] else pair["target"]
        found = words_of_pair(task, pair["source"], given, settings["subwords"])
        for name, words in zip(WORDS, found, strict=True):
            lines[name][number - numbers[0]] = " ".join(words.text)
    folder.write_part(numbers, lines, sorted(missing))
    yield len(missing)


def words_of_pair(task, source: Tensor, target: Tensor, subwords: str) -> list[Words]:
    """Return the words of a source and a target sentence, without EOS; for ``subwords`` see
    ``words_of``."""
    sides = ((task.source_dictionary, source), (task.target_dictionary, target))
    return [
        words_of([words[token] for token in side[:-1].tolist()], subwords) for words, side in sides
    ]


def aligned_words(
    translator: Translator, sample: dict, subwords: str
) -> tuple[list[str], list[list[str]]]:
    """Return the words of the only sentence of a batch, and those of the source that they are
    linked with.

    Returns:
        The words of the target, and for each a list: the source's word by the mean of the heads,
        normal and then shifted, of each layer; ``""`` where there is no link.
    """
    task = translator.task
    (pair,) = forced_attention(translator.model, sample, task.source_dictionary.pad())
    source, target = words_of_pair(task, pair.source, pair.target, subwords)
    weights = pair.weights["cross"].numpy()
    layers, heads = weights.shape[:2]
    # Of each kind and layer, the last links are those of the mean of the heads.
    means = word_links(weights, source, target)[heads :: heads + 1]
    linked = [
        {place: source.text[word] for word, place in means[kind * layers + layer]}
        for layer in range(layers)
        for kind in range(len(ALIGNMENT_KINDS))
    ]
    return target.text, [[by.get(place, "") for by in linked] for place in range(len(target.text))]
