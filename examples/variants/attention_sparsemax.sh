# Sparsemax attention in all three places, softmax output. ReLA, Table 1.
source "$EXAMPLES/variants/softmax.sh"
VARIANT_FLAGS+=(--attention sparsemax)
