# WMT 2014, English to German, as in ReLA: 4.5 million training pairs. Validation:
# newstest2013, the test set of the year before (paper). shared/wmt14.sh lists the corpora and
# the pairs that are left out; shared/rela.sh has the rest. Train with --settings rela. Not run
# here.

TARGET_LANG=de
VALID_YEARS=2013
source "$EXAMPLES/datasets/shared/rela.sh"
source "$EXAMPLES/datasets/shared/wmt14.sh"
