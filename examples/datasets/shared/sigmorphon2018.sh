# CoNLL-SIGMORPHON 2018, task 1: the form of a word, given its lemma and tags. One model for all the
# languages, as in S2S, section 4, whose hyperparameters these are.
# Cotterell et al.: The CoNLL-SIGMORPHON 2018 Shared Task: Universal Morphological Reinflection.
# Home: https://github.com/sigmorphon/conll2018
#
# The data set's file sets SETTING and MAX_EPOCH. Ten languages are fetched one by one, by their
# checksums; for LANGUAGES=all the whole repository is, with 103. RAW_DIR may be a copy of it, and all
# that it has of them is read.

TEXT=characters
DICTIONARY=separate
SCORE=accuracy
CHECKPOINTS=best
SOURCE_LANG=lemma
TARGET_LANG=form
if [[ "${LANGUAGES:-}" == all && -z "${RAW_DIR:-}" ]]; then
  CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/sigmorphon2018.archives}"
else
  CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/$DATASET.sha256}"
  BASE_URL="${BASE_URL:-https://raw.githubusercontent.com/sigmorphon/conll2018/master/task1}"
fi
LANGUAGES="${LANGUAGES:-all}"
if [[ "$LANGUAGES" != all ]]; then
  RAW_NAMES="/($(printf '%s' "$LANGUAGES" | tr -s ', ' '||'))-(train-$SETTING|dev|test)\$"
fi

BATCH_SENTENCES="${BATCH_SENTENCES:-64}"
DEVICE_SENTENCES="${DEVICE_SENTENCES:-64}"
DEVICE_TOKENS="${DEVICE_TOKENS:-4000}"
# The learning rate is halved after an epoch whose validation loss is not the lowest so far; the best
# checkpoint is the one with the most validation items right.
DATASET_FLAGS=(
  --arch lstm_sparse_morph
  --optimizer adam --lr 1e-3 --clip-norm 5.0 --max-epoch "$MAX_EPOCH" --log-interval 20
  --lr-scheduler reduce_lr_on_valid_loss --lr-shrink 0.5 --lr-patience 0 --lr-threshold 0
  --best-checkpoint-metric sentence_accuracy --maximize-best-checkpoint-metric
  --seed "${SEED:-1}"
)
GENERATE=(--beam 5 --max-tokens 8000)
