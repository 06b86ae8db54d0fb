"""Studies: a grid of runs on the virtual clock, carried out, saved and collected into a history."""
