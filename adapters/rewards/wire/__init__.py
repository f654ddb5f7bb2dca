"""What the graders share: processes that grade, and are killed when a sample hangs."""
