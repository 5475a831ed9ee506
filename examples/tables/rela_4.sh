# Operations of the attention activation, by the paper's formulas and by our count.
TITLE="Sparse Attention with Linear Units, Table 4: operations"
COMMAND=(table sizes --kinds softmax,rela_g --activation-lengths 100 1000 --json STEM.json)
