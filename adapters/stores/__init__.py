"""Where the rows' tokens lie."""
