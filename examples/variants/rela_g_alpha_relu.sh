# ReLA-g attention in all three places, with the 1.5-ReLU output.
source "$EXAMPLES/variants/alpha_relu.sh"
VARIANT_FLAGS+=(--attention rela_g)
