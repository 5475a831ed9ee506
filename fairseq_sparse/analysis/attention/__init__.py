"""What attention looks at: rates of zeros and nulls, diversity of heads, rankings, pictures."""
