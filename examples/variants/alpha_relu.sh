# 1.5-ReLU output with its loss. SUE. The environment variable OUTPUT_TAU sets --output-tau; without
# it tau comes from the settings or, by default, from the weights.
if [[ -n "${OUTPUT_TAU:-}" ]]; then VARIANT_NAME="$VARIANT, τ = $OUTPUT_TAU"; fi
VARIANT_FLAGS=(
  --criterion alpha_relu_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform alpha_relu --output-alpha 1.5 --output-tau "${OUTPUT_TAU:-${DEFAULT_TAU:-weights}}"
)
