"""From entries of the catalogue and the user's options to a recipe."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Optional

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import catalogue, data, models
from fairseq_sparse.recipes.catalogue import CONFIGS, Entry, check_keys, merge, replace
from fairseq_sparse.recipes.recipe import Corpus, Decoding, Flags, Options, Recipe, Training

_PARTS = {"corpus": Corpus, "training": Training, "decoding": Decoding}
_SECTIONS = (*_PARTS, "task")
_KEYS = {
    "datasets": (*_SECTIONS, *CONFIGS, "title", "note", "raw_dir"),
    "settings": (*_SECTIONS, *CONFIGS, "architecture", "for", "label_smoothing", "output_tau"),
}
_CHOICES = {
    "kind": ("parallel", "inflection", "text"),
    "unit": ("tokens", "sentences"),
    "checkpoints": ("last", "updates", "best"),
    "score": ("bleu", "accuracy", "measures"),
}
_NEEDED = {
    "corpus": ("source",),
    "training": ("flags", "batch", "unit", "device_batch"),
    "decoding": ("flags",),
}
# Flags of fairseq-train and fairseq-generate that have an option of their own, or that the stages
# rely on, and what sets them.
_STAGES = "the recipe, whose later stages need it"
_FIXED_IN_TRAINING = {
    "max-tokens": "--batch and --device-batch",
    "batch-size": "--batch and --device-batch",
    "update-freq": "--batch and --device-batch",
    "seed": "--seed",
    "max-epoch": "--epochs",
    "max-update": "--updates",
    "save-dir": "--run-dir",
    "keep-last-epochs": "--average",
    "keep-interval-updates": "--average",
    **dict.fromkeys(("no-save", "no-epoch-checkpoints", "no-last-checkpoints"), _STAGES),
    **dict.fromkeys(("log-format", "log-file", "user-dir"), _STAGES),
}
_FIXED_IN_DECODING = dict.fromkeys(
    ("path", "gen-subset", "quiet", "results-path", "user-dir"), _STAGES
)
_FIXED: dict[str, dict[str, str]] = {
    "": _FIXED_IN_TRAINING,
    "generate": _FIXED_IN_DECODING,
    "corpus": {},
}


def resolve(dataset: str, variant: str, options: Options, entry: Optional[Entry] = None) -> Recipe:
    """Return every setting of a run of ``VARIANT`` or ``VARIANT+ATTENTION``.

    The later wins: the data set (of the catalogue, or an entry of :func:`own_data`), its
    configuration, the paper's settings, the variant, the options, the overrides.
    """
    if options.config not in CONFIGS:
        raise RecipeError(f"the configuration {options.config!r} is neither cpu nor gpu")
    if entry is None:
        entry = catalogue.find("datasets", dataset)
    else:
        entry = catalogue.expand("datasets", dataset, entry)
    check_keys("datasets", dataset, entry, _KEYS["datasets"])
    sections = merge(_sections(entry), _sections(entry.get(options.config, {})))
    _check("datasets", dataset, sections)
    settings: Entry = {}
    if options.settings:
        settings = catalogue.find("settings", options.settings)
        sections = merge(sections, _settings(settings, dataset, sections, options))
        _check("settings", options.settings, sections)
    own, generate, fields_of_corpus = _split_overrides(options)

    corpus = data.corpus(dataset, sections["corpus"], options, fields_of_corpus)
    names = {"source": corpus.source, "target": corpus.target}
    names["tokenizer"] = corpus.tokenizer(corpus.target)
    training, decoding, task = (
        replace(sections.get(name, {}), names) for name in ("training", "decoding", "task")
    )
    if corpus.kind != "text":
        languages = {"source-lang": corpus.source, "target-lang": corpus.target}
        task = {"task": "translation_sparse", **languages, **task}

    task = {flag: own.pop(flag, value) for flag, value in task.items()}
    flags = training["flags"] | models.model_flags(variant, options, settings)
    flags = _with_length(flags, options) | own
    if options.average is not None and training.get("checkpoints") == "best":
        raise RecipeError("--average: the best checkpoint is used, and none are averaged")
    trained = _training(training, flags, options)

    data_dir = options.data_dir or Path("data") / dataset
    run_dir = options.run_dir or Path("runs") / dataset / run_name(variant, options)
    raw_dir = entry.get("raw_dir") or options.raw_dir
    return Recipe(
        dataset=dataset,
        variant=models.split_name(variant, options)[0],
        settings=options.settings,
        config=options.config,
        seed=options.seed,
        label=models.label(variant, options),
        note=entry.get("note", ""),
        task=task,
        corpus=corpus,
        model=models.model(flags),
        training=trained,
        decoding=_decoding(decoding, generate, trained, corpus, task, options.seed),
        data_dir=data_dir.absolute(),
        run_dir=run_dir.absolute(),
        raw_dir=Path(raw_dir).absolute() if raw_dir else None,
    )


def run_name(variant: str, options: Options) -> str:
    """Return the name of a run's default folder, made from what distinguishes it."""
    name, attention = models.split_name(variant, options)
    numbers = {"output": options.output_alpha, "attention": options.attention_alpha}
    parts = {place.removeprefix("attention_"): getattr(options, place) for place in models.PLACES}
    parts |= {key: f"{value:g}" for key, value in numbers.items() if value is not None}
    parts |= {"tau": options.output_tau, "by": options.output_algorithm}
    parts |= models.overridden(options)
    words = [f"{name}+{attention}" if attention else name]
    words += [f"{key}-{value}" for key, value in parts.items() if value]
    words += [options.settings] if options.settings else []
    words += [options.config]
    words += [f"seed-{options.seed}"] if options.seed > 1 else []
    return re.sub(r"[^\w.+-]", "-", "-".join(words))


def _split_overrides(options: Options) -> tuple[Flags, Flags, Flags]:
    """Return the overrides of fairseq-train, of fairseq-generate and of the corpus."""
    found: dict[str, Flags] = {part: {} for part in _FIXED}
    for key, text in options.overrides.items():
        part, _, name = key.lstrip("-").rpartition(".")
        if part not in found:
            raise RecipeError(f"--set {key}: {part!r} is neither generate nor corpus")
        if name in _FIXED[part]:
            raise RecipeError(f"--set {key}: it is set by {_FIXED[part][name]}")
        flag = {"true": True, "false": False}.get(text, text)
        found[part][name] = text if part == "corpus" else flag
    return found[""], found["generate"], found["corpus"]


def _check(kind: str, name: str, sections: Entry) -> None:
    """Check the keys of the sections of a run, and the values of those with a choice."""
    for part, fields_of in _PARTS.items():
        section = sections.get(part, {})
        check_keys(kind, name, section, [field.name for field in fields(fields_of)], f"{part}.")
        for key in _NEEDED[part]:
            if key not in section:
                raise RecipeError(f"{kind}.yaml, {name}: {part}.{key} is missing")
        for key, known in _CHOICES.items():
            if section.get(key, known[0]) not in known:
                choices = f"is one of {', '.join(known)}, not {section[key]}"
                raise RecipeError(f"{kind}.yaml, {name}: {part}.{key} {choices}")


def _sections(entry: Entry) -> Entry:
    return {name: entry[name] for name in _SECTIONS if name in entry}


def _settings(settings: Entry, dataset: str, sections: Entry, options: Options) -> Entry:
    """Return the sections of a paper's settings for a data set."""
    architecture = sections["training"]["flags"]["arch"]
    if not architecture.startswith(settings["architecture"]):
        needed = f"--settings {options.settings}: for {settings['architecture']}"
        raise RecipeError(f"{needed}, but {dataset} trains {architecture}")
    check_keys("settings", options.settings, settings, _KEYS["settings"])
    own = settings.get("for", {}).get(dataset, {})
    layers = settings, catalogue.expand("settings", options.settings, own)
    both = [x for layer in layers for x in (layer, layer.get(options.config, {}))]
    return merge(*map(_sections, both))


def _with_length(flags: Flags, options: Options) -> Flags:
    """Return the flags with the user's length of training."""
    flags = dict(flags)
    if options.updates is not None:
        flags["max-update"] = options.updates
    if options.epochs is not None:
        flags["max-epoch"] = options.epochs
        if 0 < options.epochs < int(flags.get("validate-interval", 1)):
            # Otherwise there would be no validation, and so no best checkpoint.
            flags["validate-interval"] = options.epochs
    return flags


def _training(section: Entry, flags: Flags, options: Options) -> Training:
    changed = {
        name: value
        for name in ("batch", "device_batch", "average")
        if (value := getattr(options, name)) is not None
    }
    own = {name: value for name, value in flags.items() if not models.is_model_flag(name)}
    return Training(**(section | changed | {"flags": _given(own)}))


def _decoding(
    section: Entry, overrides: Flags, training: Training, corpus: Corpus, task: Flags, seed: int
) -> Decoding:
    flags = {**section["flags"], **overrides}
    # A single sentence may be longer than the batches of training.
    own = {"max_tokens": max(training.device_batch, 1024), **section}
    if corpus.kind == "text":
        flags = {"seed": seed, **flags}
        evaluate = {"max-tokens": own["max_tokens"], **section["evaluate"]}
        # The context is part of a block.
        block = int(task["tokens-per-sample"])
        if block <= evaluate["context-window"]:
            evaluate["context-window"] = block // 2
        own["evaluate"] = evaluate
        own["prompts"] = tuple(section["prompts"])
    return Decoding(**(own | {"flags": _given(flags)}))


def _given(flags: Flags) -> Flags:
    """Return the flags without those that have been removed."""
    return {name: value for name, value in flags.items() if value is not False}
