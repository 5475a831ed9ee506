# The synthetic German-English corpus of examples/quickstart: 15,000 / 500 / 1,000 sentence pairs
# made from templates. Scores on them say nothing about translating real text.

DATASET_NOTE="synthetic: made from templates, so scores say nothing about translating real text"
SOURCE_LANG=de
TARGET_LANG=en
read -r -a corpus_flags <<<"${CORPUS_FLAGS:-}" || true
MAKE_RAW=(quickstart/make_corpus.py ${corpus_flags[@]+"${corpus_flags[@]}"})
TRAIN_PREFIX=train
VALID_PREFIX=valid
TEST_PREFIX=test
GOLD_ALIGNMENT=test.talp
GOLD_WORDS=test.tok
BPE_MERGES="${BPE_MERGES:-2000}"

# 0.8 million parameters, 1,208 updates; about 3 minutes on one CPU core.
BATCH_TOKENS="${BATCH_TOKENS:-1024}"
DEVICE_TOKENS="${DEVICE_TOKENS:-1024}"
AVERAGE_LAST="${AVERAGE_LAST:-2}"
MAX_EPOCH="${MAX_EPOCH:-8}"
DATASET_FLAGS=(
  --arch transformer_sparse --share-all-embeddings
  --encoder-layers 2 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256
  --encoder-attention-heads 4
  --decoder-layers 2 --decoder-embed-dim 128 --decoder-ffn-embed-dim 256
  --decoder-attention-heads 4
  --dropout 0.1
  --lr 3e-3 --warmup-updates 300 --max-epoch "$MAX_EPOCH" --log-interval 20
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7
  --seed "${SEED:-1}"
)
GENERATE=(--beam 5 --lenpen 1.0 --max-tokens 8000)
