"""`redhost lab bench`: speed and size, side by side with what else there is."""
