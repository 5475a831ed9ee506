"""All measurements of one checkpoint, whoever trained it: decoding, scores, statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq_sparse.recipes.parts import USER_DIR
from fairseq_sparse.recipes.plan import Argument, Command, Plan, Stage


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate, and how.

    Attributes:
        checkpoint: the model.
        data: folder that ``fairseq-preprocess`` made.
        folder: where results go; ``table results`` and ``report`` read them there.
        subset: part of the data.
        languages: source and target, the endings of its files.
        reference: its raw reference, one sentence a line; None for no score of text.
        beam: the beam size.
        post_process: how subwords become words: ``subword_nmt``, ``sentencepiece`` or ``none``.
        tokenizer: ``moses`` or ``space``.
        cpu: do not use a GPU.
    """

    checkpoint: Path
    data: Path
    folder: Path
    subset: str
    languages: tuple[str, str]
    reference: Path | None
    beam: int
    post_process: str
    tokenizer: str
    cpu: bool


def plan(options: Evaluation) -> Plan:
    """Return the plan: fairseq-generate, score, fairseq-validate, and the analyses."""
    run, subset = options.folder, options.subset
    device = ["--cpu"] if options.cpu else []
    common: list[Argument] = [options.data, "--user-dir", USER_DIR, "--task", "translation_sparse"]
    common += ["--path", options.checkpoint, "--max-tokens", "4000", "--num-workers", "0", *device]
    source, target = options.languages
    # A tokenizer of fairseq's needs the names of the languages.
    text = ["--tokenizer", options.tokenizer, "--source-lang", source, "--target-lang", target]
    if options.post_process != "none":
        text += ["--post-process", options.post_process]
    generated, validated = run / f"generate-{subset}.txt", run / f"validate-{subset}.txt"
    beam = ["--gen-subset", subset, "--beam", str(options.beam), "--log-format", "simple"]
    rest = ["--valid-subset", subset, "--required-batch-size-multiple", "1", "--log-format", "json"]
    commands = [
        Command(("fairseq-generate", *common, *beam, *text), stdout=generated, with_errors=True),
        Command(("fairseq-validate", *common, *rest), stdout=validated, with_errors=True),
    ]
    inputs = [options.checkpoint, *sorted(options.data.glob(f"{subset}.*"))]
    if options.reference:
        scores = run / "hyp.detok.txt", run / "bleu.json"
        argv = ("fairseq-sparse", "score", generated, "--reference", options.reference)
        flags = ("--output", scores[0], "--json", scores[1])
        commands.append(Command((*argv, *flags), outputs=scores))
        inputs.append(options.reference)
    words = options.post_process
    analysed: list[Argument] = [options.data, "--path", options.checkpoint, "--subset", subset]
    analysed += device
    # Without outputs, so that they always run: they read what they have measured before.
    for kind, flags in (("attention", ("--subwords", words)), ("support", ("--no-search",))):
        commands.append(Command(("fairseq-sparse", "analyze", kind, *analysed, *flags)))
    stage = Stage(
        name=f"evaluate-{subset}",
        folder=run,
        settings={"beam": options.beam, "text": text},
        inputs=tuple(inputs),
        outputs=tuple(path for command in commands for path in command.made),
        commands=tuple(commands),
    )
    return Plan(f"evaluation of {options.checkpoint.name} on {subset}", (stage,))
