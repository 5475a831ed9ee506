# ReLA-g in the encoder's self-attention alone, softmax output. ReLA, Table 1.
source "$EXAMPLES/variants/softmax.sh"
VARIANT_FLAGS+=(--attention-enc rela_g)
