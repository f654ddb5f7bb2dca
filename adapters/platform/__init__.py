"""Hardware kinds: the only readers of device and thread settings."""
