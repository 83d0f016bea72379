"""The mathematics of the contract in exact integers: moduli, budget, bounds."""
