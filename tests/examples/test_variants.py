"""The variants and settings of the recipes, as fairseq understands their flags."""

import subprocess
from pathlib import Path

import pytest
from fairseq import options

from fairseq_sparse.models.transformer_sparse import TransformerSparseModel
from fairseq_sparse.modules.attention_config import attention_kinds
from toy import ROOT, USER_DIR, task

EXAMPLES = Path(ROOT) / "examples"
VARIANTS = sorted(path.stem for path in (EXAMPLES / "variants").glob("*.sh"))
# Table 1 of the ReLA paper, row by row: the attention of encoder, decoder and cross.
RELA_TABLE_1 = {
    "softmax": ("softmax",) * 3,
    "attention_sparsemax": ("sparsemax",) * 3,
    "attention_entmax15": ("entmax15",) * 3,
    "attention_relu": ("relu",) * 3,
    "attention_relu_rmsnorm": ("relu_rmsnorm",) * 3,
    "rela_i": ("rela_i",) * 3,
    "rela_g": ("rela_g",) * 3,
    "rela_g_layernorm": ("rela_g_layernorm",) * 3,
    "rela_g_gelu": ("rela_g_gelu",) * 3,
    "rela_g_leaky_relu": ("rela_g_leaky_relu",) * 3,
    "rela_g_enc": ("rela_g", "softmax", "softmax"),
    "rela_g_dec": ("softmax", "rela_g", "softmax"),
    "rela_g_cross": ("softmax", "softmax", "rela_g"),
}


def recipe(
    variant,
    settings="",
    config="cpu",
    show='"${DATASET_FLAGS[@]}" "${VARIANT_FLAGS[@]}"',
    **variables,
):
    """Return what ``show`` expands to in the recipe: by default, its flags for training."""
    script = f"""source '{EXAMPLES}/stages/common.sh'; load_recipe; printf '%s\\n' {show}"""
    names = {"DATASET": "multi30k_de_en", "VARIANT": variant, "SETTINGS": settings}
    names.update(CONFIG=config, DATA_DIR="data", RUN_DIR="run", PATH="/usr/bin:/bin", **variables)
    result = subprocess.run(["bash", "-c", script], env=names, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def parse(flags):
    parser = options.get_training_parser("translation_sparse")
    return options.parse_args_and_arch(parser, ["data", "--user-dir", USER_DIR, *flags])


@pytest.mark.parametrize(
    ("variant", "settings"),
    [(variant, "") for variant in VARIANTS]
    + [(x, y) for x in ("softmax", "entmax15", "alpha_relu", "rela_g") for y in ("rela", "sue")],
)
def test_a_variant_gives_a_model(variant, settings):
    args = parse(recipe(variant, settings))
    model = TransformerSparseModel.build_model(args, task())
    assert model.decoder.output_projection.transform.name == args.output_transform
    assert getattr(args, "label_smoothing", 0) == (0.1 if settings == "rela" else 0)


@pytest.mark.parametrize("variant", RELA_TABLE_1)
def test_the_rows_of_rela_table_1_differ_in_the_attention_alone(variant):
    args, baseline = parse(recipe(variant)), parse(recipe("softmax"))
    assert tuple(attention_kinds(args).values()) == RELA_TABLE_1[variant]
    different = {name for name, value in vars(args).items() if getattr(baseline, name) != value}
    assert different <= {"attention", "attention_enc", "attention_dec", "attention_cross"}


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"OUTPUT_VARIANT": "entmax15"}, "output of entmax15"),
        ({"OUTPUT_VARIANT": "alpha_relu", "OUTPUT_TAU": "0.5"}, "output of alpha_relu, τ = 0.5"),
    ],
)
def test_a_variant_of_attention_takes_the_output_of_another(variables, name):
    args = parse(recipe("rela_g", **variables))
    output = parse(recipe(variables["OUTPUT_VARIANT"], **variables))
    different = {key for key, value in vars(args).items() if getattr(output, key) != value}
    assert different == {"attention"} and args.attention == "rela_g"
    assert recipe("rela_g", show='"$VARIANT_NAME"', **variables) == [f"rela_g, {name}"]


@pytest.mark.parametrize("variant", ["sparsemax", "entmax15", "entmax", "rela_g"])
def test_an_algorithm_changes_nothing_else(variant):
    variables = {"OUTPUT_VARIANT": "entmax15", "OUTPUT_ALPHA": "2"}
    usual = parse(recipe(variant, **variables))
    sorted_ = parse(recipe(variant, OUTPUT_ALGORITHM="sort", **variables))
    assert vars(sorted_) == {**vars(usual), "output_algorithm": "sort"}
    (name,) = recipe(variant, show='"$VARIANT_NAME"', OUTPUT_ALGORITHM="sort", **variables)
    assert name.startswith(variant) and name.endswith(", by sort")


@pytest.mark.parametrize(("settings", "tau"), [("", "weights"), ("sue", "data")])
def test_tau_is_that_of_the_weights_and_in_sue_that_of_the_first_batch(settings, tau):
    assert parse(recipe("alpha_relu", settings)).output_tau == tau
    assert parse(recipe("alpha_relu", settings, OUTPUT_TAU="0.5")).output_tau == "0.5"


def test_an_attention_is_no_output():
    with pytest.raises(AssertionError, match="OUTPUT_VARIANT=rela_i: not one of softmax, "):
        recipe("rela_g", OUTPUT_VARIANT="rela_i")


@pytest.mark.parametrize("config", ["cpu", "gpu"])
def test_settings_of_rela(config):
    args = parse(recipe("rela_g", "rela", config))
    assert args.criterion == "entmax_loss" and args.output_transform == "softmax"
    assert (args.dropout, args.attention_dropout, args.activation_dropout) == (0.1, 0.1, 0.1)
    assert not args.encoder_normalize_before and not args.decoder_normalize_before
    assert (args.lr_scheduler, args.warmup_updates) == ("inverse_sqrt", 4000)
    decoding = recipe("rela_g", "rela", config, show='"${GENERATE[@]}" "$AVERAGE_LAST"')
    assert decoding[:4] == ["--beam", "4", "--lenpen", "0.6"] and decoding[-1] == "5"
