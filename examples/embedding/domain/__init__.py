"""The application's own domain. It knows nothing of hexpo, and hexpo's `domain` is no rival: that
one is called `hexpo.domain`."""
