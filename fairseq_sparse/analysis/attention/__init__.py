"""Statistics of attention: rates of zeros and nulls, diversity of heads, rankings, pictures."""
