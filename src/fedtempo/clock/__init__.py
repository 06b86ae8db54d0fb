"""Exact time: client times, waiting rules, the server's bookkeeping, carriers, timelines and their limit cycles."""
