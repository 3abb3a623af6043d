"""Files: scenes, spectra, images and maps from disk and back."""
