# WMT 2016, Romanian to English, as in ReLA: 608,000 training pairs, Romanian with its diacritics
# (which is not verified). wmt16_ro_en is that of S2S.
# ReLA's BLEU: softmax 32.7, sparsemax attention 33.5, 1.5-entmax attention 33.2, ReLA 32.9. Not run
# here.

SOURCE_LANG=ro
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/wmt16_corpora.sh"
source "$EXAMPLES/datasets/shared/rela.sh"
source "$EXAMPLES/datasets/shared/transformer_base.sh"
