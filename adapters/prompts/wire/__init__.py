"""What the prompt sources share: the row schema, file access and the seeded reading order."""
