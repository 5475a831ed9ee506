# WMT 2014, news, English to German or French; the file that sources this one sets TARGET_LANG and
# VALID_YEARS. Bojar et al.: Findings of the 2014 Workshop on Statistical Machine Translation.
# Home: https://www.statmt.org/wmt14/translation-task.html
#
# Train: Europarl v7, Common Crawl and News Commentary v9 (not stated, ours; the number of pairs is
# that of SUE and ReLA). Test: newstest2014 (ReLA; not stated in SUE), all 3,003 sentences of it (not
# stated, ours).
# Left out: training pairs with more than 250 tokens on a side and, for French, pairs with more than
# 1.5 times as many tokens on one side as on the other (not stated, ours; the papers' 4.5 million
# German pairs rule out such a limit, ReLA's 36 million French pairs do not). Tokens are Moses' (not
# stated, ours).

SOURCE_LANG=en
source "$EXAMPLES/datasets/shared/wmt.sh"
for place in \
  "training-parallel-europarl-v7.tgz!training/europarl-v7" \
  "training-parallel-commoncrawl.tgz!commoncrawl" \
  "training-parallel-nc-v9.tgz!training/news-commentary-v9"; do
  add_corpus train text "$place.$TARGET_LANG-en" "$place.$TARGET_LANG-en"
done
for year in $VALID_YEARS; do
  place="wmt${year#20}-test.tgz!test/newstest$year-src"
  add_corpus valid seg "$place" "$place" .sgm
done
case "$TARGET_LANG" in
  de)
    place="wmt14-test-full.tgz!test-full/newstest2014-deen"
    TEXT_FLAGS=(--max-tokens 250)
    ;;
  fr)
    place="wmt14-test-full.tgz!test-full/newstest2014-fren"
    TEXT_FLAGS=(--max-tokens 250 --max-ratio 1.5)
    ;;
esac
add_corpus test seg "$place-src" "$place-ref" .sgm
source "$EXAMPLES/datasets/shared/transformer_base.sh"
