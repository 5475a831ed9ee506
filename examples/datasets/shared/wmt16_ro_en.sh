# WMT 2016, Romanian and English, as in S2S: Romanian loses its diacritics (Sennrich, Haddow, Birch:
# Edinburgh Neural Machine Translation Systems for WMT 16), each language has 25,000 merges of its
# own, and training has at most 120,000 updates (paper). The choice of sets and tokens is ours (not
# stated).

DATASET_NOTE="Romanian is without diacritics, also in the reference"
source "$EXAMPLES/datasets/shared/wmt16_corpora.sh"
TEXT_FLAGS=(--separate-bpe --remove-diacritics ro)
BPE_MERGES="${BPE_MERGES:-25000}"
MAX_UPDATE="${MAX_UPDATE:-120000}"
VALIDATE_UPDATES="${VALIDATE_UPDATES:-10000}"
source "$EXAMPLES/datasets/shared/sparse_seq2seq_mt.sh"
