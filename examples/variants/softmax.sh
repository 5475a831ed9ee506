# Dense output, trained with cross-entropy: what the others are compared with.
VARIANT_FLAGS=(--criterion cross_entropy --output-transform softmax)
# entmax_loss is the same loss here, but logs the same statistics as for the other variants.
VALIDATE_FLAGS=(--model-overrides "{'criterion': {'_name': 'entmax_loss'}}")
