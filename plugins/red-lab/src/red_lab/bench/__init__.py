"""`redhost lab bench`: speed and size, compared side by side with other libraries."""
