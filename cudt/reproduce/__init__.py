"""All of the paper's experiments with one command, cheapest first (`cudt reproduce`)."""
