# What the data sets of ReLA have in common, which are meant for --settings rela.
#
#   setting                    value                        from
#   BPE                        32,000 merges                paper; joint, but for Chinese, is not
#                                                           stated, ours
#   embeddings                 a matrix a language, the     authors' repository; the 72.31 million
#                              target's also the output's   parameters of the paper are met so
#   batch                      25,000 target tokens in the  paper: about 25,000
#                              mean, padding not counted
#   updates                    300,000                      authors' repository
#                                                           (github.com/bzhangGo/zero)
#   checkpoints                every 5,000 updates          authors' repository; the last 5: paper
#   validation, test           the sets of the year before  paper, but for Ro-En
#                              and of the year
#   corpora, filters           of each data set's file      not stated, ours
#   tokenizer                  Moses, hyphens split         not stated, ours
#   score                      sacreBLEU: cased, 13a, exp   paper (version 1.4.2; ours is newer, and
#                              smoothing; tokenised BLEU    these settings are the same)

BPE_MERGES="${BPE_MERGES:-32000}"
MAX_UPDATE="${MAX_UPDATE:-300000}"
BATCH_SIDE=target
DICTIONARY=separate
EMBEDDINGS=--share-decoder-input-output-embed
CHECKPOINTS=updates
SAVE_UPDATES="${SAVE_UPDATES:-5000}"
