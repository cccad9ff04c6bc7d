"""Many runs of one recipe: fair searches, grids and seeds, on Optuna (`cudt sweep`)."""
