# WMT 2014, English to German, as in ReLA: 4.5 million training pairs before cleaning. Validation:
# newstest2012 and newstest2013, as in docs/usage of the authors' repository.
# The paper's BLEU was not at hand. Not run here.

TARGET_LANG=de
VALID_YEARS="2012 2013"
source "$EXAMPLES/datasets/shared/rela.sh"
source "$EXAMPLES/datasets/shared/wmt14.sh"
