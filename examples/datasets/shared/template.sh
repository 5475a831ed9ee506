# A data set of your own. Copy this file to examples/datasets/NAME.sh, change the parts marked with
# "<-", and run
#
#     RAW_DIR=/folder/of/the/files examples/run.sh NAME entmax15 --cpu
#
# docs/your-own-data.md explains each step.

# <- The languages, which are the endings of the file names: RAW_DIR has train.ja, train.en,
# test.ja, test.en in UTF-8, one sentence per line; line N of one side is the translation of line N
# of the other. The files may be compressed (train.ja.gz).
SOURCE_LANG=ja
TARGET_LANG=en
# <- The beginnings of the file names.
TRAIN_PREFIX=train
TEST_PREFIX=test
# <- Every 20th training pair is held out for validation. If you have validation files, delete this
# line and set VALID_PREFIX=dev (dev.ja, dev.en).
HOLD_OUT=20

# <- For text that is already tokenised, as Japanese or Thai must be: name its languages,
# and score the tokens unchanged. Without these three lines the text is raw: it is tokenised by
# Moses' rules, and BLEU is that of raw text. If only one side is tokenised, name only its language,
# and keep the other two lines only if that is the target side.
TEXT_FLAGS=(--tokenized "$SOURCE_LANG" "$TARGET_LANG")
TOKENIZER=space
SCORE_FLAGS=(--tokenize none)

# <- Number of BPE merges, learned on both sides together: about 4,000 for 50,000 pairs, 8,000 to
# 16,000 for a few hundred thousand, 32,000 or more for millions. For languages with different
# scripts, which share no words, set TEXT_FLAGS+=(--separate-bpe) and DICTIONARY=separate, and below
# use --share-decoder-input-output-embed in place of --share-all-embeddings.
BPE_MERGES="${BPE_MERGES:-4000}"

# <- The model and its training, as flags of fairseq-train. BATCH_TOKENS is the number of tokens per
# update, DEVICE_TOKENS the number one device can hold at once, and AVERAGE_LAST the number of epoch
# checkpoints that are averaged.
case "$CONFIG" in
  cpu) # about 2 million parameters; small data, or a first try
    BATCH_TOKENS="${BATCH_TOKENS:-2048}"
    DEVICE_TOKENS="${DEVICE_TOKENS:-2048}"
    DATASET_FLAGS=(
      --arch transformer_sparse --share-all-embeddings
      --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512
      --encoder-attention-heads 4
      --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512
      --decoder-attention-heads 4
      --dropout 0.1
      --lr 2e-3 --warmup-updates 400 --max-epoch "${MAX_EPOCH:-6}" --log-interval 20
    )
    AVERAGE_LAST="${AVERAGE_LAST:-3}"
    ;;
  gpu) # about 40 million parameters, for up to a million pairs
    BATCH_TOKENS="${BATCH_TOKENS:-8192}"
    DEVICE_TOKENS="${DEVICE_TOKENS:-8192}"
    DATASET_FLAGS=(
      --arch transformer_sparse_iwslt_de_en --share-all-embeddings
      --dropout 0.3 --weight-decay 1e-4 --fp16
      --lr 1e-3 --warmup-updates 2000 --max-epoch "${MAX_EPOCH:-40}" --log-interval 50
    )
    AVERAGE_LAST="${AVERAGE_LAST:-5}"
    ;;
esac
DATASET_FLAGS+=(
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7
  --seed "${SEED:-1}"
)
# <- Flags of fairseq-generate.
GENERATE=(--beam 5 --lenpen 1.0 --max-tokens 8000)
