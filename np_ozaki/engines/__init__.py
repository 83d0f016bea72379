"""Engines of the contract; each multiplies in its own way and gives the same bits."""
