"""What people look at: scores, figures, maps."""
