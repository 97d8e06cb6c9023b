"""Results of runs, as figures, screens and pages."""
