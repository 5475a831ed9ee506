# 1.5-ReLU output with its loss; tau is the mean entmax threshold of the first batch. SUE.
VARIANT_FLAGS=(
  --criterion alpha_relu_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform alpha_relu --output-alpha 1.5 --output-tau data
)
