"""Ranks in processes of their own do what one process does; they start once for all of it."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.bench")
