# CoNLL-SIGMORPHON 2018, task 1: predict the form of a word from its lemma and tags. One model for
# all languages, as in S2S.
# Cotterell et al.: The CoNLL-SIGMORPHON 2018 Shared Task: Universal Morphological Reinflection.
# Home: https://github.com/sigmorphon/conll2018
#
#   setting               value                             from
#   languages             high: 86, medium: 102             paper; PART=yes takes only some of them,
#                                                           which are not the paper's data
#   units                 characters; the source is the     paper; the order is that of the example
#                         language, the tags and the lemma  in its section 4.1
#   model                 LSTM, 2 + 2 layers of 300,        paper
#                         bidirectional encoder, bilinear
#                         attention, input feeding, a bias
#                         in the attentional layer
#   encoder's directions  150 units each                    not stated, ours: both together are as
#                                                           wide as the decoder
#   dropout               0.3                               paper; where is not stated: fairseq's
#   loss of a batch       mean over its tokens              not stated, ours
#   batch                 64 items                          paper
#   optimiser             Adam, learning rate 0.001         paper; its other settings are not stated
#   schedule              halved whenever the validation    paper
#                         loss rises
#   validation            high: every epoch, medium: every  paper
#                         10 epochs
#   checkpoint            the one with the most correct     paper: best validation accuracy; this
#                         validation items, teacher-forced  measure of it is ours
#   epochs                MAX_EPOCH                         not stated, ours
#   beam                  5                                 paper
#   length penalty        1                                 not stated, ours
#   gradient clipping     5                                 not stated, ours
#   label smoothing       none                              not stated, ours
#   score                 word accuracy on the test set,    paper
#                         mean over languages
#   sparsity, certainty   on the validation set             paper
#
# The data set's file sets SETTING, ALL_LANGUAGES (their number), MAX_EPOCH and VALIDATE_EPOCHS.
# All languages come in one archive; with PART=yes the files of ten languages, or of those in
# LANGUAGES, are fetched one by one and checked by their checksums. RAW_DIR may be a copy of the
# repository; every language in it is read, or those in LANGUAGES.

TEXT=characters
DICTIONARY=separate
SCORE=accuracy
CHECKPOINTS=best
ANALYZE_VALID=yes
SOURCE_LANG=lemma
TARGET_LANG=form
if [[ -z "${PART:-}" ]]; then
  [[ "${LANGUAGES:-all}" == all ]] || fail "$DATASET is all languages, as in the paper; for some of" \
    "them take ${DATASET}_part"
  CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/sigmorphon2018.archives}"
else
  ALL_LANGUAGES=1
  DATASET_NOTE="a part of the shared task's languages: not comparable with results for all of them"
  CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/sigmorphon2018_$SETTING.sha256}"
  BASE_URL="${BASE_URL:-https://raw.githubusercontent.com/sigmorphon/conll2018/master/task1}"
fi
LANGUAGES="${LANGUAGES:-all}"
if [[ "$LANGUAGES" != all ]]; then
  RAW_NAMES="/($(printf '%s' "$LANGUAGES" | tr -s ', ' '||'))-(train-$SETTING|dev|test)\$"
fi

BATCH_SENTENCES="${BATCH_SENTENCES:-64}"
DEVICE_SENTENCES="${DEVICE_SENTENCES:-64}"
DEVICE_TOKENS="${DEVICE_TOKENS:-4000}"
if (( VALIDATE_EPOCHS > MAX_EPOCH )); then VALIDATE_EPOCHS="$MAX_EPOCH"; fi
DATASET_FLAGS=(
  --arch lstm_sparse_morph
  --optimizer adam --lr 1e-3 --clip-norm 5.0 --max-epoch "$MAX_EPOCH" --log-interval 20
  --lr-scheduler reduce_lr_on_valid_loss --lr-shrink 0.5 --lr-patience 0 --lr-threshold 0
  --lr-compare-with previous --validate-interval "$VALIDATE_EPOCHS"
  --best-checkpoint-metric sentence_accuracy --maximize-best-checkpoint-metric
  --seed "${SEED:-1}"
)
GENERATE=(--beam 5 --max-tokens 8000)
