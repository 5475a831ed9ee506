# alpha-entmax attention with an alpha learned for each head. Correia et al. 2019.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention entmax --attention-alpha-learnable)
