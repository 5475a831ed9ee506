# alpha-entmax attention whose alpha is learned, one for each head. Correia et al. 2019.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention entmax --attention-alpha-learnable)
