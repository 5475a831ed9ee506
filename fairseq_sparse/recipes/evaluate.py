"""All measurements of one checkpoint, whoever trained it: decoding, scores, statistics."""

from __future__ import annotations

from pathlib import Path

from fairseq_sparse.recipes.parts import USER_DIR
from fairseq_sparse.recipes.plan import Argument, Command, Plan, Stage


def plan(
    checkpoint: Path,
    data: Path,
    folder: Path,
    subset: str,
    languages: tuple[str, str],
    reference: Path | None,
    beam: int,
    post_process: str,
    tokenizer: str,
    cpu: bool,
) -> Plan:
    """Return the plan: fairseq-generate, score, fairseq-validate, and the analyses.

    Args:
        data: folder that ``fairseq-preprocess`` made.
        folder: where results go; ``table results`` and ``report`` read them there.
        reference: the raw reference, one sentence a line; None for no score of text.
        post_process: how subwords become words: ``subword_nmt``, ``sentencepiece`` or ``none``.
        tokenizer: ``moses`` or ``space``.
    """
    device = ["--cpu"] if cpu else []
    common: list[Argument] = [data, "--user-dir", USER_DIR, "--task", "translation_sparse"]
    common += ["--path", checkpoint, "--max-tokens", "4000", "--num-workers", "0", *device]
    # A tokenizer of fairseq's needs the names of the languages.
    text = ["--tokenizer", tokenizer, "--source-lang", languages[0]]
    text += ["--target-lang", languages[1]]
    if post_process != "none":
        text += ["--post-process", post_process]
    generated, validated = folder / f"generate-{subset}.txt", folder / f"validate-{subset}.txt"
    search = ["--gen-subset", subset, "--beam", str(beam), "--log-format", "simple"]
    rest = ["--valid-subset", subset, "--required-batch-size-multiple", "1", "--log-format", "json"]
    commands = [
        Command(("fairseq-generate", *common, *search, *text), stdout=generated, with_errors=True),
        Command(("fairseq-validate", *common, *rest), stdout=validated, with_errors=True),
    ]
    inputs = [checkpoint, *sorted(data.glob(f"{subset}.*"))]
    if reference:
        scores = folder / "hyp.detok.txt", folder / "bleu.json"
        argv = ("fairseq-sparse", "score", generated, "--reference", reference)
        flags = ("--output", scores[0], "--json", scores[1])
        commands.append(Command((*argv, *flags), outputs=scores))
        inputs.append(reference)
    analysed: list[Argument] = [data, "--path", checkpoint, "--subset", subset, *device]
    # Without outputs, so that they always run: they read what they have measured before.
    for kind, flags in (("attention", ("--subwords", post_process)), ("support", ("--no-search",))):
        commands.append(Command(("fairseq-sparse", "analyze", kind, *analysed, *flags)))
    stage = Stage(
        name=f"evaluate-{subset}",
        folder=folder,
        settings={"beam": beam, "text": text},
        inputs=tuple(inputs),
        outputs=tuple(path for command in commands for path in command.made),
        commands=tuple(commands),
    )
    return Plan(f"evaluation of {checkpoint.name} on {subset}", (stage,))
