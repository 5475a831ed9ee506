# The attention of the De-En model with 1.5-entmax in output and attention, nonzeros outlined.
source "$EXAMPLES/tables/sparse_seq2seq_2.sh"
TITLE="Sparse Sequence-to-Sequence Models, Fig. 5: attention"
DATASETS=(iwslt17_de_en)
ROWS=("entmax OUTPUT_ALPHA=1.5 ATTENTION_ALPHA=1.5")
COLUMNS=(bleu nonzeros)
FOLLOW_UP=(draw attention DATA --path MODELS --sentence 0 --place cross --output STEM.png)
