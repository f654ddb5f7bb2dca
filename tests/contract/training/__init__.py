"""What every training engine promises. Engines whose model is a tiny random one, on a CPU."""
