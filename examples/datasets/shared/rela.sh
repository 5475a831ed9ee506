# The common part of ReLA's data sets, which are meant for --settings rela.
#
#   setting                    value                        from
#   BPE                        32,000 merges                paper; joint (except for Chinese): not
#                                                           stated, ours
#   embeddings                 one matrix per language, the authors' repository; gives the paper's
#                              target's also the output's   72.31 million parameters
#   batch                      25,000 target tokens on      paper: about 25,000
#                              average, without padding
#   updates                    300,000                      authors' repository for WMT14 En-De
#                                                           (github.com/bzhangGo/zero); for the
#                                                           others not stated, ours
#   checkpoints                every 5,000 updates          authors' repository; the last 5: paper
#   validation, test           the previous year's set and  paper, except for Ro-En
#                              that of the year
#   corpora, filters           in each data set's file      not stated, ours
#   tokenizer                  Moses, hyphens split         not stated, ours
#   score                      sacreBLEU: cased, 13a, exp   paper (version 1.4.2; ours is newer with
#                              smoothing; tokenised BLEU    the same settings)

BPE_MERGES="${BPE_MERGES:-32000}"
MAX_UPDATE="${MAX_UPDATE:-300000}"
BATCH_SIDE=target
DICTIONARY=separate
EMBEDDINGS=--share-decoder-input-output-embed
CHECKPOINTS=updates
SAVE_UPDATES="${SAVE_UPDATES:-5000}"
