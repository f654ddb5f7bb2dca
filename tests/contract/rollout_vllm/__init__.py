"""What vLLM promises: the adapter over a stand-in for its engine everywhere, and over the real one,
started once for all of it, where that is installed (`make test-engines`)."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.bench")
