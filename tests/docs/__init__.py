"""The documentation: every page is played as its reader would, and no page shows code that is not run."""
