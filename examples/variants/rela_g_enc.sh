# ReLA-g in the encoder's self-attention alone. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention-enc rela_g)
