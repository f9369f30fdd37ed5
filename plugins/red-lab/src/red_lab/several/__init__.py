"""Several answers per text on natural text: any number of labels, and spans."""
