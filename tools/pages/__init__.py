"""The project's pages, taken apart for tests: blocks of code, commands, links, figures."""
