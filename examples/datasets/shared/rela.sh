# What the data sets of ReLA have in common, which are meant for --settings rela: 32,000 joint
# merges, and 300,000 updates of 25,000 tokens (github.com/bzhangGo/zero,
# docs/rela_sparse_attention, whose SacreBLEU stands in each data set's file; its signature is not
# given there, ours is case:mixed, tok:13a, smooth:exp).

BPE_MERGES="${BPE_MERGES:-32000}"
MAX_UPDATE="${MAX_UPDATE:-300000}"
