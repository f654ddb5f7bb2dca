"""For tests of your own adapters, losses and estimators: contract suites and strategies.

`strategies` needs hypothesis; the contract suites (`checkpoints`, `platform`, `reward`, `prompts`,
`tracker`, `rollout`, `row_store`) need nothing beyond this library.
"""
