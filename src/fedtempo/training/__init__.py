"""What one job does and what the server makes of it: solvers, corrections, compression, server rules."""
