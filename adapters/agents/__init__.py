"""How a prompt is played: one answer, or turns."""
