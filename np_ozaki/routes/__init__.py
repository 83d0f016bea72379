"""Routes: which function of NumPy is answered by what here."""
