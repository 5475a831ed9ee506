# alpha-entmax with any alpha at the output (OUTPUT_ALPHA) and in the attention (ATTENTION_ALPHA),
# from the environment; 1 is softmax. All use the same loss. S2S, Tables 1 and 2 and Fig. 4.
OUTPUT_ALPHA="${OUTPUT_ALPHA:-1.5}"
ATTENTION_ALPHA="${ATTENTION_ALPHA:-1}"
VARIANT_NAME="entmax: output $OUTPUT_ALPHA, attention $ATTENTION_ALPHA"

# Print the name of alpha-entmax for an alpha: kinds with a name of their own are faster and take no
# alpha.
entmax_kind() {
  case "$1" in
    1 | 1.0) printf softmax ;;
    1.5) printf entmax15 ;;
    2 | 2.0) printf sparsemax ;;
    *) printf entmax ;;
  esac
}

output="$(entmax_kind "$OUTPUT_ALPHA")"
attention="$(entmax_kind "$ATTENTION_ALPHA")"
VARIANT_FLAGS=(
  --criterion entmax_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform "$output" --attention "$attention"
)
if [[ "$output" == entmax ]]; then VARIANT_FLAGS+=(--output-alpha "$OUTPUT_ALPHA"); fi
if [[ "$attention" == entmax ]]; then VARIANT_FLAGS+=(--attention-alpha "$ATTENTION_ALPHA"); fi
source "$EXAMPLES/variants/shared/algorithm.sh"
