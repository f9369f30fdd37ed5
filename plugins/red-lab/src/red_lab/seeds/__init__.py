"""`redhost lab seeds`: every claim and requirement of the four seeds, with its status."""
