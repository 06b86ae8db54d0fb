"""A scheme is a waiting rule with options: the named ones, the published ones, and their timelines."""
