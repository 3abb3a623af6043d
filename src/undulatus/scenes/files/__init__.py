"""Files of scenes, spectra, images and maps: opening, writing and verifying."""

NETCDF = (".nc", ".nc4")
"""Suffixes of netCDF files."""
