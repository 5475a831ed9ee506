# WMT 2016, Romanian to English, as in ReLA: 608,000 training pairs (paper). The corpora,
# validation on newsdev2016 (shared/wmt16_corpora.sh) and keeping Romanian's diacritics are ours
# (not stated). shared/rela.sh has the rest; wmt16_ro_en is the version of S2S. Train with
# --settings rela. Not run here.

SOURCE_LANG=ro
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/wmt16_corpora.sh"
source "$EXAMPLES/datasets/shared/rela.sh"
source "$EXAMPLES/datasets/shared/transformer_base.sh"
