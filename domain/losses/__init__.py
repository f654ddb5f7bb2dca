"""Policy losses, the entropy bonus, the value loss and supervised terms."""
