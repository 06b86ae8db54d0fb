"""What a contribution weighs: importance, long-run shares, weight rules, weights and windows."""
