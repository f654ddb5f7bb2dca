"""hexpo: hexagonal policy optimisation.

Post-training of language models with reinforcement learning and on-policy distillation, behind
ports and adapters. Importing this package loads no engine, no torch and no accelerator; start at
`hexpo.entrypoints.library` to embed a run, or at `hexpo.application.ports` to read the design.
"""

__version__ = "0.1.0"
