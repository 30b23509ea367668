"""Protocol definitions and the stubs that `make proto` generates from them."""
