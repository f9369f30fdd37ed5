# Nothing: transformers' own imports every model. Each is imported from its folder.
