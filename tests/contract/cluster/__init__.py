"""What every cluster promises; Ray is started once for all of it."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.bench")
