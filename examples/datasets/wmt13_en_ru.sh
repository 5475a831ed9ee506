# WMT 2013, news, English to Russian, with 60,000 joint merges as in SUE, and without the Yandex
# corpus. Bojar et al.: Findings of the 2013 Workshop on Statistical Machine Translation.
# Home: https://www.statmt.org/wmt13/translation-task.html
#
# Train: Common Crawl and News Commentary v8; WMT's list of headlines is left out (which parts SUE
# took, besides Yandex's, is not verified). Validation: newstest2012. Test: newstest2013. Training
# pairs with more than 250 tokens on a side, or 1.5 times as many as on the other, are left out, as
# in shared/wmt14.sh (not verified for SUE).
# The paper's BLEU was not at hand. Not run here.

SOURCE_LANG=en
TARGET_LANG=ru
source "$EXAMPLES/datasets/shared/wmt.sh"
for place in \
  "training-parallel-commoncrawl.tgz!commoncrawl.ru-en" \
  "training-parallel-nc-v8.tgz!training/news-commentary-v8.ru-en"; do
  add_corpus train text "$place" "$place"
done
place="wmt19-dev.tgz!dev/newstest2012"
add_corpus valid text "$place" "$place"
place="wmt13-test.tgz!test/newstest2013-src"
add_corpus test seg "$place" "$place" .sgm
TEXT_FLAGS=(--max-tokens 250 --max-ratio 1.5)
BPE_MERGES="${BPE_MERGES:-60000}"
source "$EXAMPLES/datasets/shared/transformer_base.sh"
