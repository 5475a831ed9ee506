"""The model of a run: its flags of output, attention and loss, and its names."""

from __future__ import annotations

from fairseq_sparse.errors import RecipeError
from fairseq_sparse.recipes import catalogue
from fairseq_sparse.recipes.catalogue import Entry, suggestion
from fairseq_sparse.recipes.recipe import Flags, Model, Options
from fairseq_sparse.tables.models import ALPHAS

PLACES = {
    "attention_enc": "encoder self-attention",
    "attention_dec": "decoder self-attention",
    "attention_cross": "cross-attention",
}
# Entmax whose alpha has a name of its own; it is faster, and takes no alpha.
_ENTMAX = {alpha: name for name, alpha in ALPHAS.items()}


def label(variant: str, options: Options) -> str:
    """Return what tables call the model, or nothing if the variant's name says it all."""
    name, attention = split_name(variant, options)
    output_alpha, attention_alpha = options.output_alpha, options.attention_alpha
    if name == "entmax":
        if output_alpha is None:
            output_alpha = _variant(name)["flags"]["output-alpha"]
        if attention_alpha is None and not attention:
            attention_alpha = 1.0
    parts = [name if output_alpha is None else f"{name}: output {output_alpha:g}"]
    if attention_alpha is not None:
        parts.append(f"attention {attention_alpha:g}")
    elif attention:
        parts.append(f"{attention} attention")
    for place, where in PLACES.items():
        if kind := getattr(options, place):
            parts.append(f"{kind} {where}")
    if options.output_tau:
        parts.append(f"τ = {options.output_tau}")
    if options.output_algorithm:
        parts.append(f"by {options.output_algorithm}")
    for flag, value in overridden(options).items():
        parts.append(flag if value == "true" else f"{flag} = {value}")
    return "" if parts == [name] else ", ".join(parts)


def split_name(variant: str, options: Options) -> tuple[str, str]:
    """Return the variant without attention, and the kind of attention, empty for softmax."""
    name, _, attention = variant.partition("+")
    if attention and options.attention not in ("", attention):
        raise RecipeError(f"{variant} and --attention {options.attention} contradict each other")
    attention = attention or options.attention
    return name, "" if attention == "softmax" else attention


def _variant(name: str) -> Entry:
    entry = catalogue.find("variants", name)
    catalogue.check_keys("variants", name, entry, ("flags", "takes"))
    return entry


def model_flags(variant: str, options: Options, settings: Entry) -> Flags:
    """Return the flags of output, attention and loss, without the overrides."""
    variant, attention = split_name(variant, options)
    entry = _variant(variant)
    takes, flags = entry.get("takes", ()), dict(entry["flags"])
    for alpha in (options.output_alpha, options.attention_alpha):
        if alpha is not None and not alpha >= 1:
            raise RecipeError(f"an alpha must be at least 1, got {alpha:g}")
    if "output_tau" in takes and "output_tau" in settings:
        flags["output-tau"] = settings["output_tau"]
    for option in ("output_alpha", "output_tau", "output_algorithm"):
        flag, value = option.replace("_", "-"), getattr(options, option)
        if value in (None, ""):
            continue
        if option not in takes:
            raise RecipeError(f"--{flag}: the variant {variant} takes none")
        flags[flag] = value
    if flags["output-transform"] == "entmax" and flags["output-alpha"] in _ENTMAX:
        flags["output-transform"] = _ENTMAX[flags.pop("output-alpha")]
    smoothing = options.label_smoothing
    if smoothing is None:
        smoothing = settings.get("label_smoothing", 0)
    flags["label-smoothing"] = smoothing
    return flags | _attention_flags(attention, options)


def _attention_flags(attention: str, options: Options) -> Flags:
    flags: Flags = {"attention": attention} if attention else {}
    for place in PLACES:
        if kind := getattr(options, place):
            flags[place.replace("_", "-")] = kind
    known, alpha = catalogue.section("variants", "attentions"), options.attention_alpha
    for flag, kind in flags.items():
        if kind not in known:
            raise RecipeError(f"--{flag}: no attention {kind!r}{suggestion(str(kind), known)}")
    if alpha is None:
        return flags
    if not flags:
        flags["attention"] = _ENTMAX.get(alpha, "entmax")
    if "entmax" in flags.values():
        flags["attention-alpha"] = alpha
    elif flags != {"attention": _ENTMAX.get(alpha)}:
        raise RecipeError(f"--attention-alpha {alpha:g}: only --attention entmax takes any alpha")
    return flags


def model(flags: Flags) -> Model:
    """Return the model that fairseq-train builds."""
    own = {name: x for name, x in flags.items() if is_model_flag(name) and x is not False}
    output, attention = str(own["output-transform"]), str(own.get("attention", "softmax"))
    places = {place: str(own.get(place.replace("_", "-"), "")) for place in PLACES}
    alphas = catalogue.section("variants", "attentions")
    attention_alpha = alphas.get(attention)
    if "entmax" in (attention, *places.values()):
        attention_alpha = own.get("attention-alpha", alphas["entmax"])
    return Model(
        output=output,
        output_alpha=float(ALPHAS.get(output) or own.get("output-alpha", 1.5)),
        output_tau=str(own.get("output-tau", "")),
        output_algorithm=str(own.get("output-algorithm", "newton")),
        attention=attention,
        **places,
        attention_alpha=None if attention_alpha is None else float(attention_alpha),
        flags=own,
    )


def is_model_flag(flag: str) -> bool:
    """Return whether a flag is of the output, the attention or the loss."""
    loss = flag in ("criterion", "label-smoothing", "label-smoothing-prior")
    return loss or (flag.startswith(("output-", "attention")) and flag != "attention-dropout")


def overridden(options: Options) -> dict[str, str]:
    """Return the overrides that make another model."""
    return {
        name: value
        for key, value in options.overrides.items()
        if is_model_flag(name := key.lstrip("-"))
    }
