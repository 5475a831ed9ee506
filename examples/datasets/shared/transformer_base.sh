# Hyperparameters of a base Transformer for WMT corpora: those of Vaswani et al., Attention Is All
# You Need, but without label smoothing, with fairseq's epsilon of Adam (1e-8), and with 25,000
# tokens of the longer side per update. --settings sue and --settings rela override them with those
# of the papers. A file that sources this one may set MAX_UPDATE and EMBEDDINGS first. Sized by
# calculation for 8 GPUs with 16 GB; any number of GPUs makes the same updates, and one with 80 GB
# can use DEVICE_TOKENS=25000.
# The sizes are those of SUE and ReLA. The 100,000 updates for SUE, the limits on the length of a
# pair and fp16 are ours (not stated).
# No data set that sources this file has been trained on here.

BATCH_TOKENS="${BATCH_TOKENS:-25000}"
DEVICE_TOKENS="${DEVICE_TOKENS:-3200}"
MAX_UPDATE="${MAX_UPDATE:-100000}"
DATASET_FLAGS=(
  --arch transformer_sparse_wmt_en_de "${EMBEDDINGS:---share-all-embeddings}"
  --dropout 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0
  --lr 7e-4 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 4000
  --max-update "$MAX_UPDATE" --log-interval 100 --skip-invalid-size-inputs-valid-test
  --seed "${SEED:-1}"
)
if [[ "$CONFIG" == gpu ]]; then DATASET_FLAGS+=(--fp16); fi
AVERAGE_LAST="${AVERAGE_LAST:-5}"
GENERATE=(--beam 4 --lenpen 0.6 --max-tokens 8000)
