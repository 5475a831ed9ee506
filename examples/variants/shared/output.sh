# The output and loss of an attention variant: those of the variant named by OUTPUT_VARIANT in
# the environment, or softmax with cross-entropy.
case "${OUTPUT_VARIANT:-softmax}" in
  softmax | sparsemax | entmax15 | entmax15_k100 | alpha_relu) ;;
  *) fail "OUTPUT_VARIANT=$OUTPUT_VARIANT: not one of softmax, sparsemax, entmax15, entmax15_k100, alpha_relu" ;;
esac
source "$EXAMPLES/variants/${OUTPUT_VARIANT:-softmax}.sh"
if [[ -n "${OUTPUT_VARIANT:-}" ]]; then
  # alpha_relu.sh may have put its tau into VARIANT_NAME.
  VARIANT_NAME="${VARIANT_NAME:-$VARIANT}"
  VARIANT_NAME="$VARIANT, output of $OUTPUT_VARIANT${VARIANT_NAME#"$VARIANT"}"
fi
