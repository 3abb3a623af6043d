"""The method of the paper: arrays in, arrays out."""
