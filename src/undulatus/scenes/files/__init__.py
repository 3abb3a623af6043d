"""Files of scenes, spectra, images and maps: opening, writing and verifying."""
