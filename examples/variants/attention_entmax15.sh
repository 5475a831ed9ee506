# 1.5-entmax attention in all three places, softmax output. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention entmax15)
