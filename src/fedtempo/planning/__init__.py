"""Which scheme, wait and learning rate: a short pilot, a quadratic model of what it saw, and a choice."""
