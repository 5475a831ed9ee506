# Sparsemax attention in all three places. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention sparsemax)
