"""What a study leaves: measures over virtual time, models, and the files that keep them."""
