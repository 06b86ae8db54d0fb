"""Exact time: client times, waiting rules, the server's bookkeeping, transport, timelines and their limit cycles."""
