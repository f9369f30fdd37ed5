"""`redhost lab seeds`: every claim and requirement of the four seeds, and what became of it."""
