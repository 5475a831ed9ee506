# Dense output, trained with cross-entropy: the baseline of the other variants.
VARIANT_FLAGS=(--criterion cross_entropy --output-transform softmax)
if [[ "$CHECKPOINTS" == best || "$LABEL_SMOOTHING" != 0 ]]; then
  # entmax_loss is the same loss, and logs the metrics that select the best checkpoint. It also
  # takes the place of fairseq's label-smoothed loss, whose settings VALIDATE_FLAGS cannot replace,
  # because it changes only the name of the loss.
  VARIANT_FLAGS=(
    --criterion entmax_loss --label-smoothing "$LABEL_SMOOTHING"
    --output-transform softmax
  )
fi
# Validate with entmax_loss: it is the same loss, but logs the statistics of the other variants.
VALIDATE_FLAGS=(--model-overrides "{'criterion': {'_name': 'entmax_loss'}}")
