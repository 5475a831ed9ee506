# The first of two probabilities as a function of the difference of the scores; the paper's alphas
# cannot be read off its plot.
TITLE="Sparse Sequence-to-Sequence Models, Fig. 3: entmax of two scores"
COMMAND=(draw mappings entmax --alphas 1,1.25,1.5,2,4 --output STEM.png STEM.svg)
