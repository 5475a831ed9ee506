# OUTPUT_ALGORITHM, from the environment, sets --output-algorithm: how the threshold of the output is
# found. The model is the same, only its speed differs.
if [[ -n "${OUTPUT_ALGORITHM:-}" ]]; then
  VARIANT_NAME="${VARIANT_NAME:-$VARIANT}, by $OUTPUT_ALGORITHM"
  VARIANT_FLAGS+=(--output-algorithm "$OUTPUT_ALGORITHM")
fi
