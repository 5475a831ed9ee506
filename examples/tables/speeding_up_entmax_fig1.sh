# The alpha-ReLU of a scalar, tau = 0; the paper's alphas cannot be read off its plot.
TITLE="Speeding Up Entmax, Fig. 1: alpha-ReLU"
COMMAND=(draw mappings alpha-relu --alphas 1.25,1.5,1.75,2 --output STEM.png STEM.svg)
