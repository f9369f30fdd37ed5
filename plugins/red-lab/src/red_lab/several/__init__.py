"""Several answers a text on texts that people wrote: any number of labels, and spans."""
