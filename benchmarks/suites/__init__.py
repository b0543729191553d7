"""What is measured: the suites, their target ratios, and the release before, which some of them compare with."""
