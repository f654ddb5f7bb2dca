"""Losses that compare rows: pairs of a better and a worse answer, and rows judged one by one."""
