"""The project's pages, parsed for tests: blocks of code, commands, links, figures."""
